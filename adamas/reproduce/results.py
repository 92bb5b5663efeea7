"""Keeps the finished runs of a table: one line of JSON each, in a file that only grows.

A line appears as a whole or not at all, so that a killed process, a full disk or a second process can
neither damage nor repeat a finished run.
"""

import inspect
import json
import os
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from adamas.experiment.training import Settings
from adamas.federated import ALGORITHMS
from adamas.federated.settings import FederatedSettings
from adamas.models import MODELS
from adamas.reproduce.table import Cell, Table
from adamas.rules import RULES

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
        """Returns the finished runs of a cell, in the order of their seeds."""
        found = [
            line
            for line in self.lines
            if (line["row"], line["column"]) == (cell.row, cell.column) and seed in (None, line["seed"])
        ]
        return sorted(found, key=lambda line: int(line["seed"]))

    def add(self, line: Line) -> None:
        """Adds a finished run. It is on disk when this returns."""
        if self.find(Cell(line["row"], line["column"]), line["seed"]):
            raise ValueError(f"Expected a run that {self.path} does not have, got {_name(line)}.")
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
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
        *texts, tail = data.decode(errors="replace").split("\n")
        if tail and _parsed(tail) is not None:
            texts.append(tail)  # whole, but an editor took its end of line
            if self._lock.is_locked:
                with self.path.open("ab") as file:
                    file.write(b"\n")
        elif tail and self._lock.is_locked:
            os.truncate(self.path, data.rfind(b"\n") + 1)  # a write that a crash cut short
        lines: dict[tuple[str, str, int], Line] = {}
        for number, text in enumerate(texts, 1):
            line = _parsed(text)
            if line is None:
                raise ValueError(
                    f"{self.path}, line {number}, is not a result, which has {', '.join(_NEEDED)}. Remove "
                    "the line, and the run is made again."
                )
            self._check(line, number)
            key = (line["row"], line["column"], line["seed"])
            if key in lines:
                raise ValueError(f"{self.path}, line {number}: {_name(line)} comes twice. Remove one.")
            lines[key] = line
        self.lines = list(lines.values())

    def _check(self, line: Line, number: int) -> None:
        place = f"{self.path}, line {number}, is from another version of {self.table.name}"
        remedy = "Move the file away, or choose another folder with --out."
        cell = Cell(line["row"], line["column"])
        if cell not in self.table.cells():
            raise ValueError(f"{place}: it has row {cell.row!r} in column {cell.column!r}. {remedy}")
        settings = self.table.cell_settings(cell, line["seed"])
        expected = {"settings": plain_settings(settings), "options": resolved_options(settings)}
        for part, values in expected.items():
            for name in sorted(values.keys() | line[part].keys()):
                now, then = values.get(name), line[part].get(name)
                if now != then:
                    raise ValueError(
                        f"{place}: {_name(line)} has {name}={then!r} there and {now!r} now. {remedy}"
                    )
        if self.table.histograms and "moments" not in line:
            raise ValueError(
                f"{place}: {_name(line)} has no moments, which histograms = true asks for. {remedy}"
            )


_NEEDED: dict[str, type | tuple[type, ...]] = {
    "row": str,
    "column": str,
    "seed": int,
    "settings": dict,
    "options": dict,
    "private": bool,
    "epsilon": (dict, str),
    "delta": float,
    "noise_multiplier": (int, float),
    "sampling_rate": float,
    "steps": int,
    "test_accuracy": (int, float),
    "curve": list,
    "seconds": (int, float),
    "version": str,
    "machine": str,
}


def _parsed(text: str) -> Line | None:
    """Reads a line of the file; None if it is no result."""
    try:
        line = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(line, dict) or not all(
        isinstance(line.get(name), kind) for name, kind in _NEEDED.items()
    ):
        return None
    return line


def _name(line: Line) -> str:
    return f"row {line['row']!r}, column {line['column']!r}, seed {line['seed']}"


def plain_settings(settings: Settings | FederatedSettings) -> dict[str, Any]:
    """Returns settings as JSON has them, without the seed and those that have their default."""
    values = json.loads(json.dumps(asdict(settings)))
    for each in fields(settings):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if values[each.name] == default or each.name == "seed":
            del values[each.name]
    return values  # type: ignore[no-any-return]


def resolved_options(settings: Settings | FederatedSettings) -> dict[str, Any]:
    """Returns every option of rule (or algorithm) and model with its value, so that a changed default shows.

    Example:
        >>> sgd = Settings(data="digits", model="linear", rule="sgd", batch_size=8, delta=1e-5)
        >>> resolved_options(sgd)
        {'rule.lr': 1.0, 'rule.momentum': 0.0, 'rule.weight_decay': 0.0}
    """
    result: dict[str, Any] = {}
    method: tuple[str, type, dict[str, Any]]
    if isinstance(settings, FederatedSettings):
        method = ("algorithm", ALGORITHMS[settings.algorithm], settings.algorithm_options)
    else:
        method = ("rule", RULES[settings.rule], settings.rule_options)
    for kind, factory, given in (method, ("model", MODELS[settings.model], settings.model_options)):
        for name, parameter in inspect.signature(factory).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                result[f"{kind}.{name}"] = given.get(name, parameter.default)
    return json.loads(json.dumps(result))  # type: ignore[no-any-return]
