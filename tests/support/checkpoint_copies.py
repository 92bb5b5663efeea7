"""Copy a checkpoint together with its journal."""

import shutil
from pathlib import Path

from adamas.accounting.journal import Journal


def copied(file: Path, folder: Path) -> Path:
    """Copies a checkpoint and its journal to a folder; returns the new checkpoint."""
    folder.mkdir(exist_ok=True)
    for path in (file, Journal(file).path):
        shutil.copy(path, folder / path.name)
    return folder / file.name
