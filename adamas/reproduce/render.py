"""A table with its numbers beside the published ones: for the terminal, as Markdown, and as summaries."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from adamas.reproduce.results import Line, Results
from adamas.reproduce.table import Cell, Table

_FORM_TITLES = {"published": "as published", "corrected": "corrected", "ours": "not in the paper"}


@dataclass(frozen=True)
class Summary:
    """The finished runs of a cell.

    Attributes:
        mean: Mean test accuracy, in percent.
        deviation: Sample standard deviation, in percent; None for a single run.
        runs: How many.
        private: Whether all were.
        epsilon: By accountant, the largest of the runs.
    """

    mean: float
    deviation: float | None
    runs: int
    private: bool
    epsilon: dict[str, float]

    def __str__(self) -> str:
        text = f"{self.mean:.1f}" if self.deviation is None else f"{self.mean:.1f} ± {self.deviation:.1f}"
        return text if self.private else f"{text} NOT PRIVATE"


def summarize(lines: Sequence[Line]) -> Summary | None:
    """Mean and deviation of runs that differ in the seed; None if there is none."""
    if not lines:
        return None
    values = [100 * line["test_accuracy"] for line in lines]
    private = all(line["private"] for line in lines)
    spent = {
        name: max(line["epsilon"][name] for line in lines) if private else math.inf for name in ("pld", "rdp")
    }
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), deviation, len(values), private, spent)


def published_text(values: Sequence[float]) -> str:
    """A published mean, with its standard deviation if it has one."""
    return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g} ± {values[1]:g}"


def markdown(results: Results) -> str:
    """The table as a page: claim, command, numbers, notes."""
    table = results.table
    lines = results.lines
    parts = [f"# {table.title}", f"{table.source}.", f"**Claim.** {table.claim}"]
    parts.append(f"```bash\nadamas reproduce {table.name} --jobs 2   # {_effort(table, lines)}\n```")
    if lines:
        parts.append(_legend(table, lines))
        parts.append(_numbers(results))
    else:
        parts.append("No run is finished yet.")
    parts += _moments(results)
    notes = [f"{row.title}: {row.note}" for row in table.rows.values() if row.note]
    parts += ["\n".join(f"- {note}" for note in group) for group in (notes, table.notes) if group]
    if table.findings:
        parts.append("## What came out")
        parts += table.findings
    if lines:
        parts.append("\n".join(_provenance(lines)))
    return "\n\n".join(parts) + "\n"


def _effort(table: Table, lines: Sequence[Line]) -> str:
    runs = len(table.cells()) * table.seeds
    if not lines:
        return f"{runs} runs"
    by_row: dict[str, list[float]] = {}
    for line in lines:
        by_row.setdefault(line["row"], []).append(line["seconds"])
    typical = {row: statistics.median(seconds) for row, seconds in by_row.items()}
    fallback = statistics.fmean(typical.values())
    total = table.seeds * sum(typical.get(cell.row, fallback) for cell in table.cells())
    return f"{runs} runs, about {_minutes(total / 2)} on 2 cores"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _legend(table: Table, lines: Sequence[Line]) -> str:
    counts = sorted({len([1 for line in lines if _key(line) == key]) for key in map(_key, lines)})
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    words = f"Test accuracy in percent, mean ± standard deviation of {runs} seed{'s' * (counts[-1] > 1)}"
    if any(row.published for row in table.rows.values()):
        words += "; in brackets what the paper has"
    return words + f". ε at δ = {lines[0]['delta']:g} by PLD (tight) and by RDP."


def _key(line: Line) -> tuple[str, str]:
    return line["row"], line["column"]


def grid(results: Results) -> list[list[str]]:
    """The table as texts, the head first. A row of one text is a heading."""
    table = results.table
    columns = table.columns.values()
    rows = [["", *(column.title for column in columns), *(_MEASURES[m][0] for m in table.measures)]]
    spent = [_spent(results, name) for name in table.columns]
    for label, accountant in (("ε (PLD)", "pld"), ("ε (RDP)", "rdp")):
        rows.append([label, *(f"{one[accountant]:.3f}" if one else "–" for one in spent)])
    if any(column.published_epsilon for column in columns):
        rows.append(["ε, published", *(f"{column.published_epsilon or '–'}" for column in columns)])
    several = len({row.form for row in table.rows.values()}) > 1
    for form, title in _FORM_TITLES.items():
        chosen = [row for row in table.rows.values() if row.form == form]
        if chosen and several:
            rows.append([title])
        for row in chosen:
            texts = [_cell(results, Cell(row.name, column)) for column in table.columns]
            measured = [line for line in results.lines if line["row"] == row.name]
            rows.append([row.title, *texts, *(_MEASURES[m][1](measured) for m in table.measures)])
    return rows


def _numbers(results: Results) -> str:
    head, *rows = grid(results)
    lines = [head, ["---"] * len(head)]
    for row in rows:
        texts = [f"**{row[0]}**"] if len(row) == 1 else row
        lines.append(texts + [""] * (len(head) - len(texts)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_MOMENTS = {
    "m": "m̂ without noise",
    "private m": "m̂",
    "v": "v̂ without noise",
    "private v": "v̂",
    "corrected v": "v̂ as used",
    "update": "Δ without noise",
    "uncorrected update": "Δ by v̂",
    "private update": "Δ as made",
}


def _moments(results: Results) -> list[str]:
    """For each row that kept them, statistics of its moments after the last step of the first seed."""
    parts = []
    for cell in results.table.cells():
        lines = [line for line in results.find(cell) if line.get("moments", {}).get("raw")]
        if not lines:
            continue
        seen = lines[0]["moments"]["raw"]["statistics"]
        names = ("min", "q1", "median", "q3", "max", "mean")
        rows = [["", *names], ["---"] * (len(names) + 1)]
        rows += [
            [title, *(f"{seen[key][name]:.3g}" for name in names)]
            for key, title in _MOMENTS.items()
            if seen.get(key)
        ]
        title = f"{results.table.rows[cell.row].title}, {results.table.columns[cell.column].title}"
        parts.append(f"**{title}: moments after {lines[0]['steps']} steps, over all coordinates**")
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return parts


def _spent(results: Results, column: str) -> dict[str, float]:
    """The largest epsilon of the private runs of a column."""
    found = [summarize(results.find(cell)) for cell in results.table.cells(columns=[column])]
    private = [summary.epsilon for summary in found if summary is not None and summary.private]
    return {name: max(one[name] for one in private) for name in ("pld", "rdp")} if private else {}


def _cell(results: Results, cell: Cell) -> str:
    summary = summarize(results.find(cell))
    published = results.table.rows[cell.row].published.get(cell.column)
    text = "–" if summary is None else str(summary)
    return text if published is None else f"{text} ({published_text(published)})"


def _state(lines: Iterable[Line]) -> str:
    found = {line["state_bytes_per_parameter"] for line in lines}
    return f"{max(found):.2f}" if found else "–"


_MEASURES: dict[str, tuple[str, Any]] = {"state": ("state, bytes per parameter", _state)}


def _provenance(lines: Sequence[Line]) -> list[str]:
    machines = sorted({line["machine"] for line in lines})
    versions = sorted({line["version"] for line in lines})
    seeds = sorted({line["seed"] for line in lines})
    hours = sum(line["seconds"] for line in lines) / 3600
    return [
        f"Seeds {', '.join(map(str, seeds))}; adamas {', '.join(versions)}; {'; '.join(machines)}; "
        f"{hours:.1f} hours of one core in all. `results.jsonl` has a line for each run."
    ]
