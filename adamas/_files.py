"""Files that exist whole or not at all, also after a loss of power."""

import os
import threading
from collections.abc import Callable
from pathlib import Path


def replace_file(file: Path, write: Callable[[Path], None]) -> None:
    """Has a file written under another name in its folder, and renames it when it is complete and on disk."""
    temporary = file.with_name(f".{file.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        write(temporary)
        _to_disk(temporary)
        os.replace(temporary, file)
        folder_to_disk(file.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_text(file: Path, text: str) -> None:
    """The same for a text."""

    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    replace_file(file, write)


def folder_to_disk(folder: Path) -> None:
    """Makes sure that the names of new files in a folder are on disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _to_disk(folder)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
