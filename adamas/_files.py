"""Files that exist whole or not at all, also after a loss of power."""

import contextlib
import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

fcntl: Any = None  # missing outside of POSIX: there files are not locked
with contextlib.suppress(ImportError):
    fcntl = importlib.import_module("fcntl")


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


def lock_file(handle: int, path: Path) -> None:
    """Locks an open file until it is closed or the process dies.

    Raises:
        RuntimeError: If another process holds the lock.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RuntimeError(f"{path} is in use by another process. Wait until it ends, or end it.") from None


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
