"""The program: its name, its version, and the parts that all commands share."""

import ast
import json
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import adamas
from adamas._words import rounded_up
from adamas.data import DATASETS
from adamas.models import MODELS

app = typer.Typer(
    name="adamas",
    help="Differentially private training with adaptive optimizers, and privacy accounting you can check.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

DataName = Annotated[
    str, typer.Option(help=f"One of: {', '.join(DATASETS)}; NAME/validation holds training examples out.")
]
ModelName = Annotated[str, typer.Option(help=f"One of: {', '.join(MODELS)}.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


def _version(asked: bool) -> None:
    if asked:
        print(adamas.__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def assignments(
    known: Sequence[str], texts: Sequence[str], lr: float | None = None, option: str = "--set"
) -> dict[str, Any]:
    """Parses NAME=VALUE texts into options, and checks their names.

    Args:
        known: The names that exist.
        texts: The values of the option.
        lr: The value of --lr.
        option: The option's name, for the message.
    """
    options: dict[str, Any] = {} if lr is None else {"lr": lr}
    for text in texts:
        name, equals, value = text.partition("=")
        if name == "lr" and lr is not None:
            raise ValueError("Expected the learning rate once, by --lr or by --set lr=.")
        if not equals or name not in known:
            raise ValueError(
                f"Expected {option} NAME=VALUE with NAME among {', '.join(known)}, got {text!r}."
            )
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[name] = value
    return options


def print_rows(head: list[str], rows: list[list[str]]) -> None:
    """Prints a table; a row of one text is a heading."""
    table = Table(*map(escape, head), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row), style="bold" if len(row) == 1 else None)
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


def print_json(result: dict[str, Any]) -> None:
    """Prints plain data."""
    # JSON has no infinity: without noise, epsilon is the text "inf".
    plain = {name: "inf" if value == math.inf else value for name, value in result.items()}
    print(json.dumps(plain, indent=2, allow_nan=False))


def shown_bound(value: float | str) -> str:
    """Formats an epsilon with four decimals, rounded up."""
    return rounded_up(value, 4) if isinstance(value, float) else value
