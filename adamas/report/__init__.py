"""Writes runs and tables of papers as one HTML page: the guarantee, the outcome, what the rule did.

The page needs no network. All words are escaped; its only script sorts tables, and it can be read without.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from adamas.report.experiment_page import experiment_parts, experiment_warnings, index
from adamas.report.outcome import Outcome, plural
from adamas.report.page import document, heading
from adamas.report.run_page import run_parts, run_warnings
from adamas.report.runs import Run, load_runs
from adamas.report.sources import default_folder, find_sources

__all__ = ["default_folder", "write_report"]


def write_report(folders: Sequence[Path], out: Path) -> list[str]:
    """Writes a page about the runs and tables in some folders.

    Args:
        folders: Each as `adamas train --out` wrote it, or the results of a table (`results.jsonl`, with the
            table's TOML file beside the folder), or a folder of such tables. The curves of several runs
            share their plots.
        out: The HTML file.

    Returns:
        The names of the runs, and of the rows of tables, that are not private; the page marks them in red.

    Raises:
        ValueError: If a folder holds none of these, or a file that cannot be read.
        RuntimeError: If matplotlib is missing.
    """
    places, results = find_sources(folders)
    runs, outcomes = load_runs(places), [Outcome(one) for one in results]
    page = document(_title(runs, outcomes), _parts(runs, outcomes))
    out.write_text(page, encoding="utf-8")
    return [run.name for run in runs if not run.private()] + [
        f"{outcome.table.name}, {outcome.row_title(row)}"
        for outcome in outcomes
        for row in outcome.not_private()
    ]


def _title(runs: list[Run], outcomes: list[Outcome]) -> str:
    if not outcomes:
        return "adamas: " + ", ".join(run.name for run in runs)
    if len(outcomes) == 1 and not runs:
        return outcomes[0].table.title
    counts = [plural(len(outcomes), "table")] + [plural(len(runs), "run")] * bool(runs)
    return f"adamas: {' and '.join(counts)}"


def _parts(runs: list[Run], outcomes: list[Outcome]) -> Iterator[str]:
    alone = len(outcomes) == 1 and not runs
    if not alone:
        yield heading(1, _title(runs, outcomes))
    yield from run_warnings(runs)
    for outcome in outcomes:
        yield from experiment_warnings(outcome)
    if len(outcomes) > 1:
        yield index(outcomes, 2)
    for i, outcome in enumerate(outcomes):
        yield "<article>"
        yield from experiment_parts(outcome, 1 if alone else 2, f"table{i}")
        yield "</article>"
    if runs and outcomes:
        yield f'<section class="part">{heading(2, "Runs")}'
        yield from run_parts(runs, 3)
        yield "</section>"
    elif runs:
        yield from run_parts(runs, 2)
