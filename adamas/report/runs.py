"""Reads the folders of `adamas train` and `adamas federated run`: a result, a ledger, lines of JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adamas.experiment.training import DIAGNOSTICS, LEDGER, RESULT
from adamas.federated.training import ROUNDS


@dataclass(frozen=True)
class Run:
    """The contents of one folder. `result` is empty for a run that did not finish.

    Attributes:
        name: The name of the run.
        result: Its result.
        ledger: Its releases.
        lines: Its diagnostics.
        rounds: The rounds of a federated training.
    """

    name: str
    result: dict[str, Any]
    ledger: dict[str, Any]
    lines: list[dict[str, Any]]
    rounds: list[dict[str, Any]]

    def private(self) -> bool:
        """Whether the run is private: none of its files says otherwise."""
        return (
            self.result.get("private") is not False
            and self.result.get("epsilon") != "inf"
            and all(line.get("private") is not False for line in self.lines)
            and not _without_noise(self.ledger)
        )


def is_run(folder: Path) -> bool:
    """Tells whether a folder holds a run, finished or not."""
    return any((folder / name).exists() for name in (RESULT, DIAGNOSTICS, ROUNDS))


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """Reads the runs in some folders. They are named by folder, or by path where folder names coincide.

    Raises:
        ValueError: If a file cannot be read.
    """
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [_load(folder, name) for folder, name in zip(folders, names, strict=True)]


def _load(folder: Path, name: str) -> Run:
    return Run(
        name,
        _parsed(_read(folder / RESULT) or "{}", folder / RESULT),
        _parsed(_read(folder / LEDGER) or "{}", folder / LEDGER),
        _lines(folder / DIAGNOSTICS),
        _lines(folder / ROUNDS),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    # A run that died while writing may have left an incomplete last line.
    text = _read(path).rpartition("\n")[0]
    return [_parsed(line, path) for line in text.splitlines()]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"Expected {path} to hold JSON: {error}.") from error
    if not isinstance(value, dict):
        raise ValueError(f"Expected {path} to hold a JSON object, got {type(value).__name__}.")
    return value


def _without_noise(value: Any) -> bool:
    """Tells whether a ledger holds a Gaussian release of multiplier 0."""
    if isinstance(value, dict):
        return value.get("noise_multiplier") == 0 or any(map(_without_noise, value.values()))
    return isinstance(value, list) and any(map(_without_noise, value))
