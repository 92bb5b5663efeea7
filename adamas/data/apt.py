"""Fetches files from a Debian package, which is unpacked and not installed: no root access is needed."""

from collections.abc import Mapping
from pathlib import Path

from adamas.data import client
from adamas.data.cache import cached

_INSTALL = "it is part of Debian and Ubuntu; elsewhere put the files into ADAMAS_DATA, as torchvision does"


def apt_files(package: str, version: str, sha256: Mapping[str, str]) -> Path:
    """Returns a folder with the named files of a package, by `apt-get download`; see `cache.cached`."""

    def fetch(work: Path, paths: list[str]) -> Path:
        name = f"{package} {version}"
        download = ["apt-get", "download", f"{package}={version}"]
        try:
            client.run(download, work, name, _INSTALL)
        except client.MissingClientError:
            raise
        except RuntimeError as first:
            # The list of packages may be missing or old: fetch one into the temporary folder.
            (work / "lists" / "partial").mkdir(parents=True)
            (work / "apt-cache" / "archives" / "partial").mkdir(parents=True)
            lists = ["-o", f"Dir::State::Lists={work / 'lists'}", "-o", f"Dir::Cache={work / 'apt-cache'}"]
            try:
                client.run(["apt-get", "update", *lists], work, name, _INSTALL)
                client.run([*download, *lists], work, name, _INSTALL)
            except RuntimeError:
                raise RuntimeError(
                    f"{first}. Run apt-get update as an administrator and try again."
                ) from first
        archive = client.the_archive(work, "*.deb", name)
        client.run(["dpkg-deb", "-x", str(archive), str(work / "files")], work, name, "install dpkg")
        return work / "files"

    return cached(package, version, sha256, fetch)
