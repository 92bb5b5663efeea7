"""Finds a table, makes its missing runs, and writes its page, for `adamas reproduce`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from adamas._storage.files import replace_text
from adamas.reproduce import privacy
from adamas.reproduce.render import grid, markdown
from adamas.reproduce.results import Results
from adamas.reproduce.runner import Progress
from adamas.reproduce.runner import reproduce as run_missing
from adamas.reproduce.table import PRIVACY_NUMBERS, find_tables, load_table

RESULTS, PAGE = "results.jsonl", "README.md"
"""The files of a table's results."""

_PACKAGE = Path(__file__).parent.parent
_INSTALLED = [_PACKAGE / "experiments", _PACKAGE.parent / "experiments"]  # a wheel's, an editable install's


def experiments_folder(folder: Path | None) -> Path:
    """Returns the folder of tables: the given one, `experiments` here, or the copy in the package."""
    candidates = [folder] if folder else [Path("experiments"), *_INSTALLED]
    for candidate in candidates:
        if find_tables(candidate) or _privacy_file(candidate).exists():
            return candidate
    raise ValueError(
        f"Expected tables, as PAPER/TABLE.toml, in {' or '.join(map(str, candidates))}, but there are "
        "none. Name their folder with --experiments."
    )


def results_folder(folder: Path, name: str, out: Path | None) -> Path:
    """Returns where the results of a table are kept: `out`, next to the table, or `reproduced` here."""
    if out is not None:
        return out
    return (Path("reproduced") if folder in _INSTALLED else folder) / name


def overview(folder: Path) -> list[list[str]]:
    """Returns name, finished runs and title of each table."""
    rows = []
    for name, path in find_tables(folder).items():
        try:
            table = load_table(path)
            done = len(Results(results_folder(folder, name, None) / RESULTS, table).lines)
        except ValueError as error:
            rows.append([name, "cannot be read", str(error)])
            continue
        rows.append([name, f"{done} of {len(table.cells()) * table.seeds}", f"{table.source}: {table.title}"])
    if _privacy_file(folder).exists():
        rows.append([PRIVACY_NUMBERS, "none needed", privacy.TITLE])
    return rows


def make_table(
    folder: Path,
    name: str,
    place: Path,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    quick: bool = False,
    progress: Callable[[Progress], None],
) -> list[list[str]]:
    """Makes the missing runs of a table, writes its page, and returns it as texts, the head first.

    Args:
        folder: The folder of tables.
        name: paper/table.
        place: Where its results are kept.
        rows: Make only these rows.
        columns: Make only these columns.
        seeds: Runs of each cell.
        jobs: Runs in parallel.
        quick: Where rows, columns or seeds are not given, use the table's quick choice and one seed.
        progress: See `adamas.reproduce.reproduce`.
    """
    if name == PRIVACY_NUMBERS and _privacy_file(folder).exists():
        if rows or columns or seeds is not None or quick:
            raise ValueError(f"Expected no choice of rows, columns or seeds: {name} has no runs.")
        return _privacy_table(_privacy_file(folder), place)
    tables = find_tables(folder)
    if name not in tables:
        known = [*tables, *([PRIVACY_NUMBERS] if _privacy_file(folder).exists() else [])]
        raise ValueError(f"Expected a table among {', '.join(known)}, got {name!r}.")
    table = load_table(tables[name])
    if quick:
        rows, columns = rows or table.quick.get("rows"), columns or table.quick.get("columns")
        seeds = 1 if seeds is None else seeds
    with Results(place / RESULTS, table) as results:
        try:
            run_missing(results, rows=rows, columns=columns, seeds=seeds, jobs=jobs, progress=progress)
        finally:
            if results.lines:
                replace_text(place / PAGE, markdown(results))
    return grid(results)


def _privacy_file(folder: Path) -> Path:
    return folder / f"{PRIVACY_NUMBERS}.toml"


def _privacy_table(path: Path, place: Path) -> list[list[str]]:
    rows = privacy.published_numbers(path)
    # A complete page is not replaced by an incomplete one.
    if not any(row.missing for row in rows):
        place.mkdir(parents=True, exist_ok=True)
        replace_text(place / PAGE, privacy.page(rows))
    return privacy.grid(rows)
