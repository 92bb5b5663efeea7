"""Renders a table with its numbers next to the published ones: for a terminal, as Markdown, as summaries."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adamas._words import duration, rounded_up
from adamas.data import VALIDATION
from adamas.reproduce.results import Line, Results
from adamas.reproduce.table import Cell, Table

_FORM_TITLES = {"published": "as published", "corrected": "corrected", "ours": "not in the paper"}


@dataclass(frozen=True)
class Summary:
    """The finished runs of a cell.

    Attributes:
        mean: Mean accuracy, in percent.
        deviation: Sample standard deviation, in percent; None for a single run.
        runs: The number of runs.
        private: Whether all of them were private.
        epsilon: The largest of the runs, by accountant; accountants without a bound are missing.
    """

    mean: float
    deviation: float | None
    runs: int
    private: bool
    epsilon: dict[str, float]


def summarize(lines: Sequence[Line]) -> Summary | None:
    """Summarises runs that differ only in the seed; None if there are none."""
    if not lines:
        return None
    values = [100 * line["test_accuracy"] for line in lines]
    private = all(line["private"] for line in lines)
    spent = {}
    for name in ("pld", "rdp"):
        found = [line["epsilon"][name] for line in lines] if private else [math.inf]
        if None not in found:
            spent[name] = max(found)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), deviation, len(values), private, spent)


def decimals(table: Table) -> int:
    """Returns the decimals of the published numbers, one or two, which ours get, too."""
    values = [value for row in table.rows.values() for pair in row.published.values() for value in pair]
    return 2 if any(abs(value * 10 - round(value * 10)) > 1e-6 for value in values) else 1


def value_text(mean: float, deviation: float | None, digits: int) -> str:
    """Formats a mean, with its standard deviation if it has one."""
    return f"{mean:.{digits}f}" if deviation is None else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def accuracy_name(table: Table) -> str:
    """Says what the accuracies of a table are measured on: test or held-out examples."""
    names = {table.cell_settings(cell, 0).data for cell in table.cells()}
    return "validation accuracy" if all(name.endswith(VALIDATION) for name in names) else "test accuracy"


def markdown(results: Results) -> str:
    """Renders the table as a page: claim, command, numbers, notes."""
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
    return f"{runs} runs, about {duration(total / 2)} on 2 cores"


def _legend(table: Table, lines: Sequence[Line]) -> str:
    counts = sorted({len([1 for line in lines if _key(line) == key]) for key in map(_key, lines)})
    runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    name = accuracy_name(table).capitalize()
    words = f"{name} in percent, "
    words += f"mean ± standard deviation of {runs} seeds" if counts[-1] > 1 else "one seed"
    if any(row.published for row in table.rows.values()):
        words += "; in brackets what the paper has"
    deltas = {line["delta"] for line in lines}
    at = f" at δ = {deltas.pop():g}" if len(deltas) == 1 else ""
    return words + f". ε{at} by PLD (tight) and by RDP, rounded up."


def _key(line: Line) -> tuple[str, str]:
    return line["row"], line["column"]


def grid(results: Results) -> list[list[str]]:
    """Returns the table as texts, header first. A row of one text is a heading."""
    table = results.table
    columns = table.columns.values()
    rows = [["", *(column.title for column in columns), *(_MEASURES[m][0] for m in table.measures)]]
    spent = [_spent(results, name) for name in table.columns]
    deltas = [sorted({line["delta"] for line in results.lines if line["column"] == n}) for n in table.columns]
    if len({delta for some in deltas for delta in some}) > 1:
        rows.append(["δ", *(" or ".join(f"{delta:g}" for delta in some) or "–" for some in deltas)])
    for label, name in (("ε (PLD)", "pld"), ("ε (RDP)", "rdp")):
        rows.append([label, *(rounded_up(one[name], 3) if name in one else "–" for one in spent)])
    if any(column.published_epsilon for column in columns):
        printed = [column.published_epsilon for column in columns]
        rows.append(["ε, published", *("–" if value is None else rounded_up(value, 2) for value in printed)])
    several = len({row.form for row in table.rows.values()}) > 1
    for form, title in _FORM_TITLES.items():
        chosen = [row for row in table.rows.values() if row.form == form]
        if chosen and several:
            rows.append([title])
        for row in chosen:
            texts = [_cell(results, Cell(row.name, column)) for column in table.columns]
            measured = [line for name in table.columns for line in results.find(Cell(row.name, name))]
            rows.append([row.title, *texts, *(_MEASURES[m][1](measured) for m in table.measures)])
    return rows


def _numbers(results: Results) -> str:
    head, *rows = grid(results)
    return _markdown_table([head, *([f"**{row[0]}**"] if len(row) == 1 else row for row in rows)])


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    width = len(rows[0])
    lines = [rows[0], ["---"] * width, *rows[1:]]
    return "\n".join(f"| {' | '.join([*line, *[''] * (width - len(line))])} |" for line in lines)


_MOMENTS = {
    "m": "m̂ without noise",
    "private m": "m̂",
    "v": "v̂ without noise",
    "private v": "v̂",
    "corrected v": "v̂ as used",
    "update": "Δ without noise",
    "private m over v": "m̂ over √v̂ without noise",
    "uncorrected update": "Δ by v̂",
    "private update": "Δ as made",
}


def moment_statistics(kept: Mapping[str, Any]) -> list[list[str]]:
    """Returns statistics of the moments that a run without privacy kept, as texts, header first."""
    names = ("min", "q1", "median", "q3", "max", "mean")
    seen = kept["raw"]["statistics"]
    rows = [
        [title, *(f"{seen[key][name]:.3g}" for name in names)]
        for key, title in _MOMENTS.items()
        if seen.get(key)
    ]
    return [["", *names], *rows]


def _moments(results: Results) -> list[str]:
    """Returns statistics of the moments after the last step of the first seed, for cells that have them."""
    parts = []
    for cell in results.table.cells():
        lines = [line for line in results.find(cell) if line.get("moments", {}).get("raw")]
        if lines:
            head, *rows = moment_statistics(lines[0]["moments"])
            title = f"{results.table.rows[cell.row].title}, {results.table.columns[cell.column].title}"
            parts.append(f"**{title}: moments after {lines[0]['steps']} steps, over all coordinates**")
            parts.append(_markdown_table([head, *rows]))
    return parts


def _spent(results: Results, column: str) -> dict[str, float]:
    """Returns the largest epsilon of the private runs of a column."""
    found = [line for line in results.lines if line["column"] == column and line["private"]]
    summary = summarize(found)
    return {} if summary is None else summary.epsilon


def _cell(results: Results, cell: Cell) -> str:
    summary = summarize(results.find(cell))
    published = results.table.rows[cell.row].published.get(cell.column)
    digits = decimals(results.table)
    text = "–" if summary is None else value_text(summary.mean, summary.deviation, digits)
    if summary is not None and not summary.private:
        text += " NOT PRIVATE"
    if published is None:
        return text
    return f"{text} ({value_text(published[0], published[1] if len(published) > 1 else None, digits)})"


def _state(lines: Iterable[Line]) -> str:
    found = {line["state_bytes_per_parameter"] for line in lines}
    return f"{max(found):.2f}" if found else "–"


def _noise(lines: Iterable[Line]) -> str:
    """Lists the noise multipliers of a row, column by column."""
    found: dict[str, float] = {}
    for line in lines:
        found[line["column"]] = max(line["noise_multiplier"], found.get(line["column"], 0.0))
    return " / ".join(f"{value:.2f}" for value in found.values()) or "–"


_MEASURES: dict[str, tuple[str, Any]] = {
    "state": ("state, bytes per parameter", _state),
    "noise": ("noise multiplier", _noise),
}


def _provenance(lines: Sequence[Line]) -> list[str]:
    machines = sorted({line["machine"] for line in lines})
    versions = sorted({line["version"] for line in lines})
    seeds = sorted({line["seed"] for line in lines})
    hours = sum(line["seconds"] for line in lines) / 3600
    return [
        f"Seeds {', '.join(map(str, seeds))}; adamas {', '.join(versions)}; {'; '.join(machines)}; "
        f"{hours:.1f} hours of one core in all. `results.jsonl` has a line for each run."
    ]
