"""Finds what a page is about: runs of `adamas train`, and tables of papers with their results."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from adamas.report.runs import is_run
from adamas.reproduce.commands import RESULTS, experiments_folder
from adamas.reproduce.results import Results
from adamas.reproduce.table import find_tables, load_table

DEFAULT_FOLDERS = (Path("experiments"), Path("reproduced"))
"""Where `adamas reproduce` keeps results by default."""


def default_folder() -> Path:
    """Returns the folder of results here.

    Raises:
        ValueError: If there is none.
    """
    for folder in DEFAULT_FOLDERS:
        if folder.is_dir() and any(_results_in(folder)):
            return folder
    raise ValueError(
        "Expected what to report on: folders of adamas train, of a table's results, or of experiments. There "
        "are no results in ./experiments to take instead."
    )


def find_sources(folders: Sequence[Path]) -> tuple[list[Path], list[Results]]:
    """Finds the folders of runs, and the results of tables, in some folders.

    Raises:
        ValueError: If a folder holds neither, or results that cannot be read.
    """
    runs: list[Path] = []
    tables: dict[Path, Results] = {}
    for folder in folders:
        if is_run(folder):
            runs.append(folder)
            continue
        for path in _results_in(folder):
            tables.setdefault(path.resolve(), _load(path))
    return runs, list(tables.values())


def _results_in(folder: Path) -> Iterator[Path]:
    own, inner = folder / RESULTS, sorted(folder.glob(f"*/*/{RESULTS}"))
    if own.exists():
        yield own
    elif inner:
        yield from inner
    elif tables := find_tables(folder):
        raise ValueError(
            f"Expected results in {folder}, found none for its tables ({', '.join(tables)}). Make some with: "
            f"adamas reproduce {next(iter(tables))}"
        )
    else:
        raise ValueError(
            "Expected a folder of adamas train, of a table's results or of experiments, found neither "
            f"result.json nor diagnostics.jsonl, {RESULTS} or PAPER/TABLE.toml in {folder}."
        )


def _load(path: Path) -> Results:
    return Results(path, load_table(_table_of(path.parent)))


def _table_of(folder: Path) -> Path:
    """Finds the TOML file of a table's results: next to the folder, or by the same name among the tables."""
    folder = folder.resolve()
    beside = folder.with_name(folder.name + ".toml")
    if beside.exists():
        return beside
    tables: dict[str, Path] = {}
    with suppress(ValueError):  # no folder of tables: said below
        tables = find_tables(experiments_folder(None))
    name = f"{folder.parent.name}/{folder.name}"
    if name in tables:
        return tables[name]
    raise ValueError(
        f"Expected the table of {folder / RESULTS} in {beside.name} next to its folder, or a folder called "
        f"like a table ({', '.join(tables) or 'PAPER/TABLE'}), got {name}. Rename the folder."
    )
