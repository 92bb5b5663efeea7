"""Releases that were begun since the last checkpoint, on disk before they are made.

A run that dies has released more than its checkpoint says. The journal is written ahead: each release is a
record of 16 bytes, on disk before its noise is drawn, so that whatever kills the run, the records are at
least what was released. A run that goes on and dies again adds a part of its own: with a given seed its
releases may be those of the part before.
"""

import os
import struct
from pathlib import Path

from adamas._files import folder_to_disk

_RECORD = struct.Struct("<Qd")
_NEW_PART = (2**64 - 1, 0.0)  # in the place of a step and a multiplier


class Journal:
    """The file beside a checkpoint.

    Args:
        checkpoint: The checkpoint; the journal has the same name with `.journal` at its end.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     journal = Journal(Path(folder) / "run.safetensors")
        ...     journal.append(3, 1.5)
        ...     Journal(Path(folder) / "run.safetensors").parts(since=0)
        [[(3, 1.5)]]
    """

    def __init__(self, checkpoint: Path) -> None:
        self.path = checkpoint.with_name(checkpoint.name + ".journal")
        self._begun = False

    def append(self, step: int, noise_multiplier: float) -> None:
        """Puts a release on disk; if that fails it raises, and the release must not be made."""
        new = not self.path.exists()
        record = _RECORD.pack(step, noise_multiplier)
        data = record if self._begun else _RECORD.pack(*_NEW_PART) + record
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(handle).st_size
            if size % _RECORD.size:  # a last record that is not whole
                size -= size % _RECORD.size
                os.ftruncate(handle, size)
            try:
                written = os.write(handle, data)
                if written != len(data):
                    raise OSError(f"Wrote {written} of {len(data)} bytes to {self.path}: is the disk full?")
            except OSError:
                os.ftruncate(handle, size)
                raise
            os.fsync(handle)
        finally:
            os.close(handle)
        if new:
            folder_to_disk(self.path.parent)
        self._begun = True

    def parts(self, since: int) -> list[list[tuple[int, float]]]:
        """Step and noise multiplier of each release from step `since` on, in the part of each process.

        A last record that is not whole was not followed by a release.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        parts: list[list[tuple[int, float]]] = []
        for record in _RECORD.iter_unpack(data[: len(data) - len(data) % _RECORD.size]):
            if record == _NEW_PART:
                parts.append([])
            elif record[0] >= since:
                parts[-1].append(record)
        return [part for part in parts if part]

    def clear(self) -> None:
        """Forgets all records, after a checkpoint was written that has them in its ledger."""
        self.path.unlink(missing_ok=True)
        self._begun = False
