"""Prepares the outcome of a table: cells, pairs with the paper, what a row or column spent."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from adamas.reproduce.render import Summary, summarize
from adamas.reproduce.results import Line, Results
from adamas.reproduce.table import Table

# What a column may change so that its epsilon says where it belongs on an axis.
_PRIVACY = {"noise_multiplier", "epsilon", "delta", "steps", "epochs", "batch_size"}


@dataclass(frozen=True)
class Pair:
    """A cell that has both a published number and finished runs."""

    row: str
    column: str
    published: float
    ours: float

    @property
    def difference(self) -> float:
        """Ours minus the published, in points."""
        return self.ours - self.published


class Outcome:
    """The finished runs of a table, by cell.

    Args:
        results: The results of the table.
    """

    def __init__(self, results: Results) -> None:
        self.table: Table = results.table
        self.lines: list[Line] = [line if _private(line) else _marked(line) for line in results.lines]
        self.summaries: dict[tuple[str, str], Summary] = {}
        for cell in self.table.cells():
            summary = summarize(self.of(cell.row, cell.column))
            if summary is not None:
                self.summaries[cell.row, cell.column] = summary

    @property
    def total(self) -> int:
        """Runs in all."""
        return len(self.table.cells()) * self.table.seeds

    @cached_property
    def columns(self) -> list[str]:
        """The columns with a finished run."""
        return [name for name in self.table.columns if any(column == name for _, column in self.summaries)]

    @cached_property
    def rows(self) -> list[str]:
        """The rows with a finished run."""
        return [name for name in self.table.rows if any(row == name for row, _ in self.summaries)]

    @cached_property
    def places(self) -> dict[str, int]:
        """Row -> the number of its colour and marker."""
        return {name: i for i, name in enumerate(self.table.rows)}

    @cached_property
    def pairs(self) -> list[Pair]:
        """The cells that can be compared with the paper, row by row."""
        return [
            Pair(name, column, row.published[column][0], self.summaries[name, column].mean)
            for name, row in self.table.rows.items()
            for column in row.published
            if (name, column) in self.summaries
        ]

    @cached_property
    def epsilons(self) -> dict[str, float]:
        """Column -> the largest epsilon of its private runs."""
        spent: dict[str, float] = {}
        for (_, column), summary in self.summaries.items():
            if summary.private:
                spent[column] = max(spent.get(column, 0.0), summary.epsilon["pld"])
        return spent

    def along_epsilon(self) -> bool:
        """Whether the columns differ in epsilon only, so that they are points on an axis."""
        changed = {name for column in self.table.columns.values() for name in column.settings}
        values = list(self.epsilons.values())
        return changed <= _PRIVACY and len(values) > 1 and max(values) > 1.02 * min(values)

    def not_private(self) -> list[str]:
        """The rows, by their names, with a run that is not private."""
        found = {line["row"] for line in self.lines if not line["private"]}
        return [name for name in self.table.rows if name in found]

    def seeds(self) -> list[int]:
        """Returns the numbers of finished runs of cells that have any; one number if all agree."""
        return sorted({summary.runs for summary in self.summaries.values()})

    def average(self, spread: str) -> str:
        """Says what a point of a plot is, and how its deviation is drawn."""
        return (
            f"Mean of the seeds; {spread}: one standard deviation." if self.seeds()[-1] > 1 else "One seed."
        )

    def of(self, row: str, column: str) -> list[Line]:
        """Returns the finished runs of a cell, in the order of their seeds."""
        found = [line for line in self.lines if (line["row"], line["column"]) == (row, column)]
        return sorted(found, key=lambda line: int(line["seed"]))

    def row_title(self, name: str) -> str:
        """Returns the title of a row."""
        return self.table.rows[name].title

    def column_title(self, name: str) -> str:
        """Returns the title of a column."""
        return self.table.columns[name].title


def _private(line: Line) -> bool:
    """Tells whether a run is private: no part of its line says otherwise."""
    return (
        line["private"] is True
        and isinstance(line["epsilon"], dict)
        and line["noise_multiplier"] != 0
        and (line.get("moments") or {}).get("private") is not False
    )


def _marked(line: Line) -> Line:
    return line | {"private": False, "epsilon": "inf"}


def plural(count: int, word: str) -> str:
    """Formats a number with a word: 1 seed, 2 seeds."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def values_of(lines: Iterable[Line], name: str) -> list[float]:
    """Returns a field of some lines."""
    return [line[name] for line in lines]
