"""The cache of fetched files: each fetched once, verified, and stored completely or not at all."""

import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from adamas._storage.files import remove_unfinished, replace_file

try:
    import fcntl
except ImportError:  # Windows has no such locks; two processes may then fetch the same files twice
    fcntl = None  # type: ignore[assignment]

_WORK = ".fetch-"  # prefix of temporary folders

Fetch = Callable[[Path, list[str]], Path]
"""Fetches the wanted paths of a package into an empty folder, and returns the folder that holds them."""


def cache_folder() -> Path:
    """Returns the folder of fetched data: `ADAMAS_HOME`, else `adamas` in the user's cache folder."""
    if home := os.environ.get("ADAMAS_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adamas"


def cached(package: str, version: str, sha256: Mapping[str, str], fetch: Fetch) -> Path:
    """Returns a folder with the named files of a package, from the cache or fetched now.

    The folder appears in the cache complete and verified, by one rename. A fetch that fails or is killed
    leaves nothing behind, and two processes may fetch at once.

    Args:
        package: Name of the package.
        version: Its exact version.
        sha256: For each path inside the package, the hexadecimal digest that the file must have.
        fetch: Fetches the files if they are not in the cache.

    Returns:
        The folder that holds the files, by their base names.

    Raises:
        RuntimeError: If the files cannot be fetched or fail verification, with the remedy.
    """
    folder = cache_folder() / f"{package}-{version}"
    if not folder.is_dir():
        with _writing_to(folder.parent):
            if not folder.is_dir():  # otherwise another process fetched it while this one waited
                _fetch_into(folder, f"{package} {version}", sha256, fetch)
                return folder
    _verify(folder, sha256, f"Delete the folder {folder} and try again.")
    return folder


def write_whole(file: Path, write: Callable[[Path], None]) -> None:
    """Writes a file of the cache with `replace_file`, one process at a time."""
    with _writing_to(file.parent):
        replace_file(file, write)


def _fetch_into(folder: Path, name: str, sha256: Mapping[str, str], fetch: Fetch) -> None:
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=folder.parent) as temporary:
        work = Path(temporary)
        try:
            source = fetch(work, list(sha256))
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise RuntimeError(
                f"The archive of {name} is damaged or cut short: {error}. Try again."
            ) from error
        complete = work / "complete"
        complete.mkdir()
        for path in sha256:
            if not (source / path).is_file():
                raise RuntimeError(f"The package {name} has no file {path}. Check what your registry serves.")
            os.replace(source / path, complete / Path(path).name)
        _verify(complete, sha256, "Try again, and check what your registry serves.")
        try:
            os.replace(complete, folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise


@contextmanager
def _writing_to(cache: Path) -> Iterator[None]:
    """Waits for other processes that write to the cache, cleans up after killed ones, and explains errors."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache) as alone:
            if alone:
                remove_unfinished(cache)
                for left_over in cache.glob(f"{_WORK}*"):
                    shutil.rmtree(left_over, ignore_errors=True)
            yield
    except OSError as error:
        raise RuntimeError(
            f"The cache folder {cache} cannot be written: {error.strerror or error}. Make room or grant "
            "access, or name another folder in the environment variable ADAMAS_HOME."
        ) from error


@contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Locks a folder exclusively; yields whether the system has such locks."""
    if fcntl is None:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            locked = True
        except OSError:  # some network file systems have none
            locked = False
        yield locked
    finally:
        os.close(handle)  # releases the lock, as the death of the process would


def _verify(folder: Path, sha256: Mapping[str, str], remedy: str) -> None:
    for path, expected in sha256.items():
        file = folder / Path(path).name
        if not file.is_file():
            raise RuntimeError(f"The file {file.name} is missing. {remedy}")
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != expected:
            raise RuntimeError(f"The file {file.name} is damaged: its SHA-256 is not as expected. {remedy}")
