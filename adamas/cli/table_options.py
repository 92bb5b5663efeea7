"""Options of `adamas train` for tables in files, and `adamas schema`, which begins a schema file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adamas.cli.app import app

Schema = Annotated[
    Path | None,
    typer.Option(
        help="For a table: TOML or JSON with target, classes, bounds, categories; see adamas schema."
    ),
]
Target = Annotated[str | None, typer.Option(help="For a table: the column to predict.")]
Classes = Annotated[
    str | None,
    typer.Option(help="For a table: the labels, A,B,...; or public, if their set in the file is public."),
]
TargetBounds = Annotated[str | None, typer.Option(help="For a table: LOW:HIGH of a target that is a number.")]
Bounds = Annotated[
    list[str] | None,
    typer.Option(help="COLUMN=LOW:HIGH: the usual range of a numeric column, from public knowledge."),
]
Categories = Annotated[
    list[str] | None,
    typer.Option(help="COLUMN=A,B,...: the values of another column, from public knowledge."),
]
TestFile = Annotated[Path | None, typer.Option(help="For a table: a file with the test rows.")]
TestFraction = Annotated[
    float | None, typer.Option(help="Or the share of test rows in the table; 0.2 if not given.")
]


@dataclass(frozen=True)
class TableFlags:
    """The flags for a table. Each attribute is the option of this name."""

    schema: Path | None
    target: str | None
    classes: str | None
    target_bounds: str | None
    bounds: Sequence[str] | None
    categories: Sequence[str] | None
    test_file: Path | None
    test_fraction: float | None

    def check_absent(self, data: str) -> None:
        """Raises if a flag is given for data that is not a table."""
        for name, value in vars(self).items():
            if value is not None:
                raise ValueError(
                    f"Expected --{name.replace('_', '-')} only with a table, but data={data!r} is not a file "
                    "that ends in .csv or .parquet."
                )

    def options(self) -> dict[str, Any]:
        """Returns the options of the table: those of the schema, replaced by those given one by one."""
        from adamas.tabular.schema_files import read_schema

        if self.test_file is not None and self.test_fraction is not None:
            raise ValueError("Expected --test-file or --test-fraction, got both.")
        found = {} if self.schema is None else read_schema(self.schema)
        found |= _given(
            target=self.target,
            classes=_classes(self.classes),
            target_bounds=None
            if self.target_bounds is None
            else _pair(self.target_bounds, "--target-bounds"),
            test_file=None if self.test_file is None else str(self.test_file),
            test_fraction=self.test_fraction,
        )
        found["bounds"] = found.get("bounds", {}) | {
            column: _pair(value, "--bounds") for column, value in _by_column(self.bounds, "--bounds")
        }
        found["categories"] = found.get("categories", {}) | {
            column: _list(value) for column, value in _by_column(self.categories, "--categories")
        }
        if not found.get("target"):
            raise ValueError("Expected --target, or a target in --schema: the column to predict.")
        if not found.get("classes"):
            found.pop("classes", None)
        return found


def _classes(text: str | None) -> list[str] | str | None:
    return text if text is None or text == "public" else _list(text)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _by_column(texts: Sequence[str] | None, option: str) -> list[tuple[str, str]]:
    parts = [text.rpartition("=") for text in texts or []]
    for text, (column, _, value) in zip(texts or [], parts, strict=True):
        if not column or not value:
            raise ValueError(f"Expected {option} COLUMN=VALUES, got {text!r}.")
    columns = [column for column, _, _ in parts]
    for column in columns:
        if columns.count(column) > 1:
            raise ValueError(f"Expected {option} {column}= once, got it {columns.count(column)} times.")
    return [(column, value) for column, _, value in parts]


def _pair(text: str, option: str) -> list[float]:
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f"Expected {option} with LOW:HIGH in numbers, got {text!r}.") from None
    return [low, high]


def defaults_for(
    flags: TableFlags, data: str, rule: str, length: bool, lr: bool
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Returns the options of a table, and the defaults of its training.

    Args:
        flags: The flags for the table.
        data: The name of the data.
        rule: The name of the rule.
        length: Whether the number of steps or epochs is given.
        lr: Whether the learning rate is given.

    Returns:
        None and the usual defaults for other data.
    """
    from adamas.experiment.tables import default_options, is_table

    if not is_table(data):
        flags.check_absent(data)
        return None, {"model": "mlp", "schedule": "constant"}
    options = flags.options()
    usual = default_options(numbers=options.get("target_bounds") is not None)
    if rule != usual.pop("rule") or lr:
        usual.pop("lr")
    if length:
        usual.pop("epochs")
    return options, usual


@app.command()
def schema(
    data: Annotated[str, typer.Argument(help="A table: a file that ends in .csv or .parquet.")],
    out: Annotated[Path | None, typer.Option(help="The TOML file to write; printed if not given.")] = None,
) -> None:
    """Write a schema of a table to fill in, from the names and types of its columns alone."""
    from adamas.tabular.schema_files import skeleton

    text = skeleton(data)
    if out is None:
        print(text)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ValueError(f"Expected --out {out} not to exist. Choose another file.") from error
    print(f"Fill in {out} from public knowledge, and pass it to adamas train --schema.")
