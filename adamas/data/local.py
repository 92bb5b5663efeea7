"""Finds files that the user already has, in the folder `ADAMAS_DATA` or in `./data`."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path


def local_folder(inside: str, files: Sequence[str], *, fetched: bool = True) -> Path | None:
    """Returns the first folder that holds the files, plain or with `.gz`; None if no folder has any.

    Args:
        inside: The folder inside the user's data folder, as torchvision lays it out.
        files: Names of the files.
        fetched: Whether the files can be fetched if no folder has them.

    Raises:
        RuntimeError: If `ADAMAS_DATA` is not a folder, or only some of the files are missing.
    """
    places = [Path("data")]
    if named := os.environ.get("ADAMAS_DATA"):
        if not Path(named).is_dir():
            raise RuntimeError(f"ADAMAS_DATA names {named}, which is no folder. Correct or unset it.")
        places.insert(0, Path(named))
    for place in places:
        folder = place / inside
        missing = [name for name in files if find(folder, name) is None]
        if not missing:
            return folder
        if len(missing) < len(files):
            remedy = ", or move it away to have the files fetched" if fetched else ""
            raise RuntimeError(f"The folder {folder} lacks {', '.join(missing)}. Complete it{remedy}.")
    return None


def read_verified(folder: Path, sha256: Mapping[str, str]) -> dict[str, bytes]:
    """Reads and verifies files, unpacked if they end in `.gz`; returns their contents by name.

    Args:
        folder: A folder that holds the files.
        sha256: For each name without `.gz`, the hexadecimal digest that the unpacked content must have.

    Raises:
        RuntimeError: If a file is damaged.
    """
    return {name: _read_verified(folder, name, digest) for name, digest in sha256.items()}


def _read_verified(folder: Path, name: str, digest: str) -> bytes:
    file = find(folder, name)
    if file is None:
        raise RuntimeError(f"The folder {folder} has no file {name}.")
    content = file.read_bytes()
    if file.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise RuntimeError(f"The file {file} is damaged: {error}. Delete it and try again.") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise RuntimeError(
            f"The file {file} is damaged: the SHA-256 of its content is not as expected. Delete it "
            "and try again."
        )
    return content


def find(folder: Path, name: str) -> Path | None:
    """Returns the file of this name, plain or with `.gz`; None if the folder has neither."""
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)
