"""`adamas reproduce` and `adamas report`: tables of papers, and HTML pages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display

from adamas._words import duration
from adamas.cli.app import app, print_rows

if TYPE_CHECKING:
    from adamas.reproduce import Progress


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="PAPER/TABLE; without it, the tables are listed.")
    ] = None,
    rows: Annotated[str | None, typer.Option(help="Some rows only, separated by commas.")] = None,
    columns: Annotated[str | None, typer.Option(help="Some columns only, separated by commas.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each cell; as the table says if not given.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Parallel runs, on one core each.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed of a few cells, for a first look.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of results.jsonl and README.md; next to the table if not given."),
    ] = None,
    experiments: Annotated[Path | None, typer.Option(help="Folder of the tables.")] = None,
) -> None:
    """Reproduce a table of a paper: make the missing runs, then compare with the published numbers."""
    from adamas.reproduce import commands

    folder = commands.experiments_folder(experiments)
    if name is None:
        print_rows(["table", "finished runs", "what it shows"], commands.overview(folder))
        return
    place = commands.results_folder(folder, name, out)
    with _reproducing() as show:
        head, *body = commands.make_table(
            folder,
            name,
            place,
            rows=_listed(rows),
            columns=_listed(columns),
            seeds=seeds,
            jobs=jobs,
            quick=quick,
            progress=show,
        )
    print_rows(head, body)
    print(f"page: {place / commands.PAGE}")


@app.command()
def report(
    what: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of `adamas train`, of a table's results, or of tables; ./experiments."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The HTML file; report.html in the first folder if not given.")
    ] = None,
) -> None:
    """Draw runs and tables of papers as one HTML page: privacy, numbers, settings, diagnostics."""
    from adamas.report import default_folder, write_report

    folders = what or [default_folder()]
    out = out or folders[0] / "report.html"
    for name in write_report(folders, out):
        print(f"NOT PRIVATE: {name}")
    print(out)


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


@contextmanager
def _reproducing() -> Iterator[Callable[["Progress"], None]]:
    """Shows the progress of a table: a bar on a terminal, a line for each run elsewhere."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Display(
        *columns, TextColumn("{task.fields[words]}"), console=console, disable=not console.is_terminal
    ) as display:
        task = display.add_task("", total=None, words="")

        def show(progress: "Progress") -> None:
            words = "" if progress.left is None else f"about {duration(progress.left)} left"
            display.update(task, total=progress.total, completed=progress.done, words=words)
            if (line := progress.last) is not None:
                name = f"{line['row']}, {line['column']}, seed {line['seed']}"
                result = f"{line['test_accuracy']:.2%} in {line['seconds']:.0f} s"
                console.print(f"{progress.done}/{progress.total}  {name}: {result}; {words}")

        yield show
