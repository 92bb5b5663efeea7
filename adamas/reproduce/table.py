"""Reads a table of a paper from a TOML file: rows, columns, seeds and settings.

`experiments/<paper>/<table>.toml` names them. The settings of a cell are those of the table, changed by its
column, by its row, and by what the row says about this column, in this order; they are the fields of
`adamas.experiment.Settings`, or of `adamas.federated.settings.FederatedSettings` for a table with
`federated = true`. TOML has no word for None: among the options of rule, model and data it is "none".
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from adamas import _validate
from adamas.experiment.training import Settings
from adamas.federated.settings import FederatedSettings

# One of each pair is given. A change of one replaces the other.
_EITHER = [("epochs", "steps"), ("epsilon", "noise_multiplier")]
_NESTED = ("data_options", "model_options", "rule_options", "algorithm_options")
_FORMS = ("published", "corrected", "ours")

PRIVACY_NUMBERS = "privacy/published"
"""The one table that needs no run: `adamas.reproduce.privacy`."""

MEASURES = ("state", "noise")
"""Additional columns that a table may have."""


@dataclass(frozen=True)
class Column:
    """A column of the table, for instance a noise multiplier."""

    name: str
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    published_epsilon: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of the table, for instance an optimizer.

    Attributes:
        name: Its name on the command line.
        title: Its name in the table.
        form: "published": as the paper has it. "corrected": with the right formulas. "ours": what the paper
            does not have.
        settings: Changes of the table's settings.
        columns: Column -> further changes.
        only: The columns in which the row has a cell; all if empty.
        published: Column -> mean and standard deviation in the paper, in percent.
        note: A sentence under the table.
    """

    name: str
    title: str
    form: str = "published"
    settings: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    only: Sequence[str] = ()
    published: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """A row in a column."""

    row: str
    column: str


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        name: paper/table.
        title: What it shows.
        source: Where it was published.
        claim: The paper's conclusion from it.
        seeds: Runs of each cell, with the seeds 0, 1, ...
        evaluations: How often the test accuracy is measured during a run.
        histograms: Whether a run also keeps the distribution of its moments.
        federated: Whether the runs are federated trainings.
        settings: The settings that all runs share.
        rows: By name.
        columns: By name.
        notes: Notes for the reader: what was shortened, what is suspicious.
        findings: Paragraphs on the outcome, and where it differs from the paper.
        measures: Additional columns: "state" for the bytes of the optimizer's state, "noise" for the noise
            multipliers of the row, column by column.
        quick: Rows and columns that `--quick` runs, with one seed.
    """

    name: str
    title: str
    source: str
    claim: str
    seeds: int
    settings: Mapping[str, Any]
    rows: Mapping[str, Row]
    columns: Mapping[str, Column]
    evaluations: int = 5
    histograms: bool = False
    federated: bool = False
    notes: Sequence[str] = ()
    findings: Sequence[str] = ()
    measures: Sequence[str] = ()
    quick: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def cells(self, rows: Iterable[str] | None = None, columns: Iterable[str] | None = None) -> list[Cell]:
        """Returns the cells of some rows and columns, or of all, column by column."""
        row_names = dict.fromkeys(rows or self.rows)
        column_names = dict.fromkeys(columns or self.columns)
        for name in row_names:
            _validate.one_of(self.rows, row=name)
        for name in column_names:
            _validate.one_of(self.columns, column=name)
        return [
            Cell(row, column)
            for column in column_names
            for row in row_names
            if not self.rows[row].only or column in self.rows[row].only
        ]

    def cell_settings(self, cell: Cell, seed: int) -> Settings | FederatedSettings:
        """Returns the settings of one run."""
        row = self.rows[cell.row]
        changes = (self.columns[cell.column].settings, row.settings, row.columns.get(cell.column, {}))
        values = dict(self.settings)
        for change in changes:
            values = merged(values, change)
        for name in _NESTED:
            if name in values:
                values[name] = {k: None if v == "none" else v for k, v in values[name].items()}
        return (FederatedSettings if self.federated else Settings)(**values, seed=seed)


def merged(values: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merges changes into settings; options of data, model, rule and algorithm are merged one by one."""
    result = dict(values)
    for one, other in [*_EITHER, *((b, a) for a, b in _EITHER)]:
        if one in change:
            result.pop(other, None)
    for name in ("data", "model", "rule", "algorithm"):
        if name in result and change.get(name, result[name]) != result[name]:
            result.pop(f"{name}_options", None)  # they were another one's
    for name, value in change.items():
        result[name] = {**result.get(name, {}), **value} if name in _NESTED else value
    return result


# --- files ----------------------------------------------------------------------------------------------


def find_tables(folder: Path) -> dict[str, Path]:
    """Finds the tables of runs in a folder: paper/table -> TOML file."""
    found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.glob("*/*.toml")}
    return {name: found[name] for name in sorted(found) if name != PRIVACY_NUMBERS}


def load_table(path: Path) -> Table:
    """Reads and checks a table.

    Raises:
        ValueError: If the file is not a table. The message names the place and what was expected.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"Expected {path} to be a TOML file: {error}.") from error
    try:
        return _table(f"{path.parent.name}/{path.stem}", values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def _table(name: str, values: dict[str, Any]) -> Table:
    _known(values, [f.name for f in fields(Table) if f.name != "name"], "the file")
    for key in ("title", "source", "claim", "seeds", "settings", "rows", "columns"):
        if key not in values:
            raise ValueError(f"Expected {key!r}, which is missing.")
    _validate.count(seeds=values["seeds"], evaluations=values.get("evaluations", 1))
    for measure in values.get("measures", ()):
        _validate.one_of(MEASURES, measure=measure)
    kind = FederatedSettings if values.get("federated") else Settings
    known = [f.name for f in fields(kind) if f.name != "seed"]
    _known(values["settings"], known, "the settings of the table")
    columns = {key: _column(key, value, known) for key, value in values["columns"].items()}
    rows = {key: _row(key, value, list(columns), known) for key, value in values["rows"].items()}
    table = Table(name=name, **(values | {"rows": rows, "columns": columns}))
    _known(table.quick, ["rows", "columns"], "quick")
    table.cells(table.quick.get("rows"), table.quick.get("columns"))
    for cell in table.cells():
        try:
            table.cell_settings(cell, seed=0)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Row {cell.row!r}, column {cell.column!r}: {error}") from error
    if table.federated:
        _check_federated(table)
    return table


def _check_federated(table: Table) -> None:
    """Raises for what a table of federated trainings cannot have."""
    if table.histograms or table.measures:
        raise ValueError("Expected neither histograms nor measures in a federated table.")
    for cell in table.cells():
        settings = table.cell_settings(cell, seed=0)
        if isinstance(settings, FederatedSettings) and (settings.task or settings.unit != "record"):
            raise ValueError("Expected data, model and unit = 'record' in a federated table, which says so.")


def _column(name: str, values: dict[str, Any], settings: Sequence[str]) -> Column:
    _known(values, [f.name for f in fields(Column) if f.name != "name"], f"column {name!r}")
    _known(values.get("settings", {}), settings, f"the settings of column {name!r}")
    return Column(name=name, **({"title": name} | values))


def _row(name: str, values: dict[str, Any], columns: list[str], settings: Sequence[str]) -> Row:
    place = f"row {name!r}"
    _known(values, [f.name for f in fields(Row) if f.name != "name"], place)
    _validate.one_of(_FORMS, form=values.get("form", _FORMS[0]))
    for changes in (values.get("settings", {}), *values.get("columns", {}).values()):
        _known(changes, settings, f"the settings of {place}")
    published = values.get("published", [])
    if published and len(published) != len(columns):
        raise ValueError(f"Expected {len(columns)} published values in {place}, got {len(published)}.")
    for column in (*values.get("only", ()), *values.get("columns", ())):
        _validate.one_of(columns, column=column)
    listed = {column: tuple(value) for column, value in zip(columns, published, strict=False) if value}
    return Row(name=name, **({"title": name} | values | {"published": listed}))


def _known(values: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"Expected {place} to have {', '.join(known)}, got {key!r}.")
