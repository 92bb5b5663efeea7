"""Writes the files of a finished training into its folder, or elsewhere if that fails."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from adamas._storage.files import replace_file

Write = Callable[[Path], None]
"""Writes one file."""


def json_writer(value: dict[str, Any]) -> Write:
    """Returns a writer of plain data as JSON."""
    return text_writer(json.dumps(value, indent=2, allow_nan=False) + "\n")


def text_writer(text: str) -> Write:
    """Returns a writer of a text."""

    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write


def write_results(files: Mapping[str, Write], folder: Path, *, remedy: str, elsewhere: bool = True) -> None:
    """Writes files into a folder, each whole, in the order given.

    If that fails, all of them are written into a new folder under the system's temporary directory, which
    only its owner may read.

    Args:
        files: The writer of each file, by name.
        folder: Where they belong.
        remedy: How to get them if they could be written nowhere.
        elsewhere: Whether another folder may hold them.

    Raises:
        RuntimeError: If they are not in the folder. The message says where they are.
    """
    try:
        _write(files, folder)
    except Exception as error:
        words = f"The training is finished, but {folder} could not be written: {_one_line(error)}."
        if not elsewhere:
            raise RuntimeError(f"{words} {remedy}") from error
        try:
            refuge = Path(tempfile.mkdtemp(prefix="adamas-"))
            try:
                _write(files, refuge)
            except BaseException:
                shutil.rmtree(refuge, ignore_errors=True)
                raise
        except Exception as second:
            raise RuntimeError(
                f"{words} The system's temporary directory could not, either: {_one_line(second)}. {remedy}"
            ) from error
        raise RuntimeError(f"{words} Its files, {', '.join(files)}, are in {refuge}.") from error


def _write(files: Mapping[str, Write], folder: Path) -> None:
    for name, write in files.items():
        replace_file(folder / name, write)


def _one_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).rstrip(".")
