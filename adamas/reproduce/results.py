"""The finished runs of a table: one line of JSON each, in a file that only grows.

A line appears as a whole or not at all, so that a killed process, a full disk or a second process can
neither damage nor repeat a finished run.
"""

import json
import os
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from adamas.experiment import Settings
from adamas.reproduce.table import Cell, Table

Line = dict[str, Any]


class Results:
    """The results of a table in a file, open for one process at a time.

    Args:
        path: The file; it need not exist.
        table: The table that the results must belong to.

    Raises:
        ValueError: If the file holds something else, for instance results of other settings: the message
            names the first setting that differs.

    Example:
        >>> import tempfile, pathlib
        >>> from adamas.reproduce import load_table
        >>> table = load_table(pathlib.Path("experiments/macadam/table1.toml"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Results(pathlib.Path(folder) / "results.jsonl", table).lines
        []
    """

    def __init__(self, path: Path, table: Table) -> None:
        self.path, self.table = path, table
        self._lock = FileLock(path.with_name(path.name + ".lock"))
        self.lines: list[Line] = []
        self._read()

    def __enter__(self) -> "Results":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise RuntimeError(
                f"Another process is adding to {self.path}. Wait for it, or choose another folder with --out."
            ) from error
        try:
            self._read()  # once more: the other process may have ended just now
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def find(self, cell: Cell, seed: int | None = None) -> list[Line]:
        """The finished runs of a cell, in the order of their seeds."""
        found = [
            line
            for line in self.lines
            if (line["row"], line["column"]) == (cell.row, cell.column) and seed in (None, line["seed"])
        ]
        return sorted(found, key=lambda line: int(line["seed"]))

    def add(self, line: Line) -> None:
        """Adds a finished run; it is on the disk when this returns."""
        data = (json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n").encode()
        with self.path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                if file.write(data) != len(data):
                    raise OSError("the disk is full")
                os.fsync(file.fileno())
            except OSError as error:
                file.truncate(end)  # what was there before stays whole
                raise OSError(
                    f"Could not add a result to {self.path}: {error}. Earlier results are intact."
                ) from error
        self.lines.append(line)

    def _read(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if self._lock.is_locked and len(whole) < len(data):
            os.truncate(self.path, len(whole))  # a write that a crash cut short
        lines: dict[tuple[str, str, int], Line] = {}
        for number, text in enumerate(whole.decode().splitlines(), 1):
            try:
                line = json.loads(text)
                key = (line["row"], line["column"], line["seed"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number}, is not a result ({error!r}). Remove the line, and "
                    "the run is made again."
                ) from error
            self._check(line, number)
            if key in lines:
                raise ValueError(
                    f"{self.path}, line {number}: row, column and seed {key} come twice. Remove one."
                )
            lines[key] = line
        self.lines = list(lines.values())

    def _check(self, line: Line, number: int) -> None:
        place = f"{self.path}, line {number}, is from another version of {self.table.name}"
        remedy = "Move the file away, or choose another folder with --out."
        cell = Cell(line["row"], line["column"])
        if cell not in self.table.cells():
            raise ValueError(f"{place}: it has row {cell.row!r} in column {cell.column!r}. {remedy}")
        expected = plain_settings(self.table.cell_settings(cell, line["seed"]))
        expected.pop("seed", None)
        for name in sorted(expected.keys() | line["settings"].keys()):
            now, then = expected.get(name), line["settings"].get(name)
            if now != then:
                raise ValueError(
                    f"{place}: row {cell.row!r}, column {cell.column!r} has {name}={then!r} there and "
                    f"{now!r} now. {remedy}"
                )


def plain_settings(settings: Settings) -> dict[str, Any]:
    """Settings as JSON has them, those with their default left out."""
    values = json.loads(json.dumps(asdict(settings)))
    for each in fields(settings):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if values[each.name] == default:
            del values[each.name]
    return values  # type: ignore[no-any-return]
