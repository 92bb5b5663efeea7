"""Files that exist whole or not at all, also after a loss of power."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def replace_file(file: Path, write: Callable[[Path], None]) -> None:
    """Has a file written under another name in its folder, and renames it when it is complete and on disk."""
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    os.close(handle)
    try:
        write(Path(name))
        with open(name, "rb") as written:
            os.fsync(written.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
