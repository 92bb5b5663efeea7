"""Writes releases since the last checkpoint to disk before they are made.

A run that dies has released more than its checkpoint says. The journal is written ahead: the record of a
release is on disk before its noise is drawn. So the records cover everything that was released, whatever
kills the run.

A journal begins with a random token, which its checkpoint names, and with the number of the lineage: all runs
that continue one another, from one saved file or several. Each record has a sequence number, and a
digest that covers all records before it. A file in which a record was changed, lost or added is refused. An
incomplete record at the end was not followed by a release. Two changes cannot be noticed: a file that was cut
exactly between two records, and one that was replaced by an older copy of itself.

While a run is alive it holds a lock on its journal, so that no other process continues its checkpoint.
"""

import hashlib
import os
import struct
import weakref
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from adamas._storage.files import folder_to_disk, lock_file, unfinished

_MAGIC = b"adamas journal 3"
_TOKEN_BYTES = _LINEAGE_BYTES = 16
_FIELDS = struct.Struct("<QQdII16s")
_DIGEST_BYTES = 16
_RECORD_BYTES = _FIELDS.size + _DIGEST_BYTES
_HEADER_BYTES = len(_MAGIC) + _TOKEN_BYTES + _LINEAGE_BYTES + _DIGEST_BYTES
_NO_IDENTITY = bytes(16)


class Release(NamedTuple):
    """One release of a run.

    Attributes:
        step: The step on whose batch it was made, from 0.
        noise_multiplier: Its multiplier.
        identity: Names everything that the release is made of, except the attempt: `Noise.identify`. Empty
            where the noise is never drawn again.
        attempt: How many times the draw was made before, for something else.
    """

    step: int
    noise_multiplier: float
    identity: bytes = b""
    attempt: int = 0

    def repeats(self, other: "Release") -> bool:
        """Tells whether both are the same to the last bit."""
        return bool(self.identity) and self[:3] == other[:3]

    def plain(self) -> list[Any]:
        """Returns the release as plain data that JSON can hold."""
        return [self.step, self.noise_multiplier, self.identity.hex(), self.attempt]

    @classmethod
    def of(cls, plain: list[Any]) -> "Release":
        """Returns the release of plain data."""
        step, z, identity, attempt = plain
        return cls(step, z, bytes.fromhex(identity), attempt)


class Journal:
    """The journal file next to a checkpoint.

    Args:
        checkpoint: The checkpoint; the journal has the same name with `.journal` at its end.

    Attributes:
        path: The file.
        taken_over: Whether another run of this process has it now.
        was_taken_over: Whether one has had it since this object was made.
        tokens: That of the file; of one that was loaded also that of the journal before it.
        lineage: The number of the lineage, of new files. One that is read sets it.
        first: The journal that stands for the run; None if it is this one.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     journal = Journal(Path(folder) / "run.safetensors")
        ...     token = journal.restart()
        ...     journal.append([Release(3, 1.5)])
        ...     journal.release_lock()
        ...     Journal(Path(folder) / "run.safetensors").read(token)
        [[Release(step=3, noise_multiplier=1.5, identity=b'', attempt=0)]]
    """

    def __init__(self, checkpoint: Path) -> None:
        self.path = checkpoint.with_name(checkpoint.name + ".journal")
        self._handle: int | None = None
        self.taken_over = self.was_taken_over = False
        self._abandoned = False
        self.tokens: tuple[str | None, ...] = ()
        self.lineage = uuid4().hex
        self.first: Journal | None = None
        self._prepared: tuple[Path, int, bytes] | None = None
        self._digest, self._size, self._next, self._part = b"", 0, 0, 0

    @property
    def locked(self) -> bool:
        """Whether this object holds the lock, so that no other run appends."""
        return self._handle is not None

    @property
    def begun(self) -> bool:
        """Whether later releases belong into this journal, or can be recorded nowhere."""
        return self.locked or self._abandoned

    def token(self) -> str | None:
        """Returns the token of the file; None if there is no file, or one without a whole header."""
        return self._named()[0]

    def lineage_on_disk(self) -> str | None:
        """Returns the lineage of the file; None if there is no file, or one without a whole header."""
        return self._named()[1]

    def _named(self) -> tuple[str | None, str | None]:
        try:
            with self.path.open("rb") as file:
                return _names(file.read(_HEADER_BYTES))
        except FileNotFoundError:
            return None, None

    @property
    def goes_on(self) -> bool:
        """Whether a run of this process writes here, and has not lost its first journal to another run."""
        holder = _holders.get(self.path.resolve(), lambda: None)()
        if holder is None or not holder.locked:
            return False
        return not (holder.first or holder).was_taken_over

    def restart(self, token: str | None = None) -> str:
        """Begins a new file without records, locked, and returns its token."""
        token = self.prepare(token)
        try:
            self.begin()
        except BaseException:
            self.cancel()
            raise
        return token

    def prepare(self, token: str | None = None) -> str:
        """Writes a new file, with which `begin` replaces the old one, and returns its token."""
        self.cancel()
        if self.taken_over:
            self._handle, self.taken_over = None, False
        if self._handle is None and self.path.exists():
            os.close(_open_locked(self.path))  # raises if another run uses it
        value = uuid4().bytes if token is None else bytes.fromhex(token)
        start = _MAGIC + value + bytes.fromhex(self.lineage)
        digest = _chained(b"", start)
        temporary = unfinished(self.path)
        temporary.unlink(missing_ok=True)  # what another journal of this process prepared
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            lock_file(handle, self.path)  # before it has its name, so that no other run can lock it first
            os.write(handle, start + digest)
            os.fsync(handle)
        except BaseException:
            os.close(handle)
            temporary.unlink(missing_ok=True)
            raise
        self._prepared = temporary, handle, digest
        return value.hex()

    def begin(self) -> None:
        """Replaces the file by the one that was prepared."""
        assert self._prepared is not None
        temporary, handle, digest = self._prepared
        os.replace(temporary, self.path)
        folder_to_disk(self.path.parent)
        self._hold(handle)
        self._prepared, self._abandoned = None, False
        self.tokens = (self.token(),)
        self._digest, self._size, self._next, self._part = digest, _HEADER_BYTES, 0, 0

    def cancel(self) -> None:
        """Removes the file that was prepared."""
        if self._prepared is not None:
            temporary, handle, _ = self._prepared
            os.close(handle)
            temporary.unlink(missing_ok=True)
            self._prepared = None

    def abandon(self) -> None:
        """Refuses releases from now on: the checkpoint was replaced, and this is not its journal."""
        self.cancel()
        self.release_lock()
        self._abandoned = True

    def append(self, releases: list[Release]) -> None:
        """Writes releases to disk. If it raises, they must not be made."""
        self._check_owner()
        assert self._handle is not None
        digest, number, records = self._digest, self._next, b""
        for release in releases:
            fields = _FIELDS.pack(
                number,
                release.step,
                release.noise_multiplier,
                self._part,
                release.attempt,
                release.identity or _NO_IDENTITY,
            )
            digest = _chained(digest, fields)
            records += fields + digest
            number += 1
        try:
            written = os.pwrite(self._handle, records, self._size)
            if written != len(records):
                raise OSError(f"Wrote {written} of {len(records)} bytes to {self.path}: is the disk full?")
        except OSError:
            os.ftruncate(self._handle, self._size)
            raise
        os.fsync(self._handle)
        self._digest, self._size, self._next = digest, self._size + len(records), number

    def check(self, token: str) -> None:
        """Raises what `read` would raise, without taking the journal over."""
        holder = _holders.get(self.path.resolve(), lambda: None)()
        handle = _open(self.path) if holder is not None and holder.locked else _open_locked(self.path)
        try:
            self._read(handle, token)
        finally:
            os.close(handle)

    def read(self, token: str) -> list[list[Release]]:
        """Locks the journal with this token, and returns its releases by process.

        The first are those of the process that wrote the checkpoint, and may be none. Releases that are
        appended later count as those of a new process.

        Raises:
            ValueError: If there is no such journal, or it is damaged.
            RuntimeError: If a run in another process holds it.
        """
        handle = _open_locked(self.path)
        try:
            parts, digest, end = self._read(handle, token)
        except BaseException:
            os.close(handle)
            raise
        self._hold(handle)
        self.tokens, self.lineage = (token,), self.lineage_on_disk() or self.lineage
        self._digest, self._size = digest, end
        self._next, self._part = sum(map(len, parts)), max(1, len(parts))
        return parts

    def _read(self, handle: int, token: str) -> tuple[list[list[Release]], bytes, int]:
        data = os.pread(handle, os.fstat(handle).st_size, 0)
        if _names(data[:_HEADER_BYTES])[0] != token:
            raise ValueError(
                f"Expected {self.path} to be the journal of its checkpoint, found that of another one or a "
                "damaged file. Restore both files from a backup, or start again."
            )
        return _records(data, self.path)

    def remove(self) -> None:
        """Deletes the file and lets go of the lock, when its checkpoint is not needed any more."""
        self.path.unlink(missing_ok=True)
        self.release_lock()

    def release_lock(self) -> None:
        """Lets others continue the checkpoint; the end of the process does that, too."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.release_lock()

    def _hold(self, handle: int) -> None:
        self.release_lock()
        self._handle = handle
        _holders[self.path.resolve()] = weakref.ref(self)

    def _check_owner(self) -> None:
        if self._abandoned:
            raise RuntimeError(
                f"The checkpoint of {self.path} was replaced, and then writing failed: later releases "
                "would be lost. Save the run again (run.save) and go on."
            )
        if self.taken_over:
            raise RuntimeError(
                f"Another run has loaded or replaced the checkpoint of {self.path}, and holds the journal: "
                "this run cannot record its releases. Go on with the other run, or save this one again "
                "(run.save) and go on with it."
            )


_holders: dict[Path, "weakref.ref[Journal]"] = {}


def _let_go() -> None:
    """Closes the journals in a forked child. It would keep their locks after its parent ended."""
    for holder in _holders.values():
        journal = holder()
        if journal is not None:
            journal.release_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _open_locked(path: Path) -> int:
    """Opens a journal and locks it, taking it from another run of this process."""
    while True:
        earlier = _holders.get(path.resolve(), lambda: None)()
        if earlier is not None and earlier.locked:
            earlier.release_lock()
            earlier.taken_over = earlier.was_taken_over = True
        handle = _open(path)
        try:
            lock_file(handle, path)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # it was replaced while we waited


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        raise ValueError(
            f"Expected {path} next to its checkpoint, found no file: it holds what was released "
            "after the checkpoint was written. Copy both files together."
        ) from None


def _names(header: bytes) -> tuple[str | None, str | None]:
    """Returns the token and the lineage of a header."""
    start = header[: len(_MAGIC) + _TOKEN_BYTES + _LINEAGE_BYTES]
    if not start.startswith(_MAGIC) or header[len(start) :] != _chained(b"", start):
        return None, None
    names = start[len(_MAGIC) :]
    return names[:_TOKEN_BYTES].hex(), names[_TOKEN_BYTES:].hex()


def _records(data: bytes, path: Path) -> tuple[list[list[Release]], bytes, int]:
    """Returns the releases of each process, the digest of the last one and where it ends."""
    digest, end, count = data[_HEADER_BYTES - _DIGEST_BYTES : _HEADER_BYTES], _HEADER_BYTES, 0
    parts: list[list[Release]] = []
    while len(data) - end >= _RECORD_BYTES:
        fields = data[end : end + _FIELDS.size]
        found = data[end + _FIELDS.size : end + _RECORD_BYTES]
        if not any(data[end:]):
            break  # room that a loss of power left without content
        number, step, z, part, attempt, identity = _FIELDS.unpack(fields)
        digest = _chained(digest, fields)
        if found != digest or number != count:
            raise ValueError(
                f"{path} is damaged at its record {count + 1}: what was released after the checkpoint is not "
                "known. Restore both files from a backup, or start again."
            )
        parts += [[] for _ in range(part + 1 - len(parts))]
        parts[-1].append(Release(step, z, b"" if identity == _NO_IDENTITY else identity, attempt))
        end += _RECORD_BYTES
        count += 1
    return parts, digest, end


def _chained(before: bytes, fields: bytes) -> bytes:
    return hashlib.blake2b(before + fields, digest_size=_DIGEST_BYTES).digest()
