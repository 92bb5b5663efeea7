"""Writes files whole or not at all, even if power fails, and reserves folders for one process."""

import errno
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

fcntl: Any = None  # None outside of POSIX, where open files are not locked
with suppress(ImportError):
    fcntl = importlib.import_module("fcntl")

_UNFINISHED = ".adamas-new-"  # prefix of files that are being written
_LOCK = ".lock"


def replace_file(file: Path, write: Callable[[Path], None]) -> None:
    """Writes a file under another name in its folder, and renames it when it is complete and on disk."""
    temporary = unfinished(file)
    try:
        write(temporary)
        _to_disk(temporary)
        os.replace(temporary, file)
        folder_to_disk(file.parent)
    except BaseException:
        with suppress(OSError):  # the first error says more
            temporary.unlink(missing_ok=True)
        raise


def replace_text(file: Path, text: str) -> None:
    """Replaces a file with a text, whole or not at all."""

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


def remove_unfinished(folder: Path) -> None:
    """Removes unfinished files of processes that died. The caller must be alone in the folder."""
    for left_over in folder.glob(f"{_UNFINISHED}*"):
        left_over.unlink(missing_ok=True)


@contextmanager
def own_folder(folder: Path, names: Sequence[str] = ()) -> Iterator[None]:
    """Creates a folder if needed, and keeps other processes out until the block ends or this one dies.

    A folder that was created and stayed empty is removed again.

    Args:
        folder: The folder.
        names: Files that will be written there. For each, a test file is written next to it and removed.

    Raises:
        RuntimeError: If another process holds the folder, or a file cannot be written.
    """
    lock = FileLock(folder / _LOCK)
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise RuntimeError(
            f"Another training is writing to {folder}. Wait for it or stop it, or choose another folder."
        ) from error
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        remove_unfinished(folder)
        for name in names:
            _try_to_write(folder / name)
        yield
    finally:
        with suppress(OSError):  # another process came
            if made and all(path.name == _LOCK for path in folder.iterdir()):
                (folder / _LOCK).unlink()
                for path in made:
                    path.rmdir()
        lock.release()


def folder_to_disk(folder: Path) -> None:
    """Makes sure that the names of new files in a folder are on disk."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _to_disk(folder)


def _try_to_write(file: Path) -> None:
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary = unfinished(file)
        try:
            temporary.write_bytes(b"x")  # an empty file would also fit on a full disk
            _to_disk(temporary)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(file, error) from error


def _cannot_write(path: Path, error: OSError) -> RuntimeError:
    return RuntimeError(
        f"Expected --out to be a writable folder, but {path} cannot be written: {error.strerror or error}. "
        "Make room or grant access, or choose another folder. This command has spent nothing."
    )


def unfinished(file: Path) -> Path:
    """Returns the name of a file while it is incomplete."""
    return file.with_name(f"{_UNFINISHED}{file.name}-{os.getpid()}-{threading.get_ident()}")


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
