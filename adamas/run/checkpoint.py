"""Checkpoints: a run in a file, and a journal of the releases since that file was written.

A checkpoint is one file (`_storage.archive`): model, rule, scheduler, average, position of sampler and noise,
ledger, settings and versions of packages, and nothing without noise. After it is written, each release is
first written to a journal next to it (`accounting.journal`), so that the spending is known after a crash.
A checkpoint names its journal and the previous one, because a crash may come between writing the two files.
"""

import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from adamas._numerics import sums_kernel
from adamas._storage.archive import read_archive, write_archive
from adamas._version import __version__
from adamas.accounting.journal import Journal, Release
from adamas.distributed import Ranks, together, told_by_writer
from adamas.run.siblings import forget_siblings

_KIND, _VERSION = "checkpoint", 2
_PACKAGES = ("torch", "numpy", "numba", "dp-accounting")


class Resumable(Protocol):
    """The part of a run that `load` uses."""

    ranks: Ranks | None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues a saved state."""

    def recover(self, parts: Sequence[Sequence[Release]], checkpoints: "Checkpoints") -> None:
        """Takes over releases made after the state was saved, and their journal."""


AnyRun = TypeVar("AnyRun", bound=Resumable)


class Checkpoints:
    """A checkpoint file of a run, and its journal.

    Args:
        path: The file.
        every: Steps between automatic checkpoints; None for none.
    """

    def __init__(self, path: str | Path, every: int | None = None) -> None:
        self.path = Path(path).absolute()  # the process may go to another folder
        self.every = every
        self.journal = Journal(self.path)
        self._tokens = "", ""  # of the journal of the file that was read, and of the one before

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the file by this state, and begins a new journal."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        before = self.journal.token() or self.journal.restart()
        token = self.journal.prepare()
        content = {"state": state, "versions": _versions(), "journal": token, "journal_before": before}
        try:
            write_archive(self.path, _KIND, _VERSION, content)
            self.journal.begin()
        except BaseException:
            if self._may_name(token):
                self.journal.abandon()
            else:
                self.journal.cancel()
            raise

    @property
    def needed(self) -> bool:
        """Whether a run may still continue the file."""
        return self.journal.was_taken_over or (self.path.exists() and self.journal.path.exists())

    def _may_name(self, token: str) -> bool:
        """Tells whether the journal with this token may belong to the file: True if it cannot be read."""
        try:
            return bool(read_archive(self.path, _KIND, _VERSION)["journal"] == token)
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            return True

    def read(self) -> dict[str, Any]:
        """Returns the saved state, if its journal can be continued."""
        content = read_archive(self.path, _KIND, _VERSION)
        self._tokens = content["journal"], content["journal_before"]
        if self.journal.token() != self._tokens[1]:
            self.journal.check(self._tokens[0])
        state: dict[str, Any] = content["state"]
        return state

    def releases(self) -> list[list[Release]]:
        """Returns the releases of each process since the state was saved, and takes over the journal."""
        token, before = self._tokens
        parts: list[list[Release]] = []
        if self.journal.token() == before:  # the new one was not begun: nothing followed
            self.journal.restart(token)
        else:
            parts = self.journal.read(token)
        self.journal.tokens = self._tokens
        return parts

    def remove(self) -> None:
        """Deletes the file and its journal."""
        self.path.unlink(missing_ok=True)
        self.journal.remove()
        forget_siblings(self.path)


def load(path: str | Path, run: AnyRun) -> AnyRun:
    """Continues a saved run from a file of `run.save(path)` or `checkpoint_every`.

    Make the run with `make_private` and the arguments of the saved one, and load the file into it. The
    journal next to the file lists the releases since it was written. A run with a given seed repeats these
    steps. A repeated release is counted once if it is the same to the last bit, which needs the same data,
    loss and packages. Otherwise it is a new release with its own noise, and is charged.

    Args:
        path: The file.
        run: A fresh run with the settings of the saved one.

    Returns:
        The run, which continues where the file was written, and continues the journal of that file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file or its journal is damaged, of another version, or of a run with other settings
            or another model, or if the journal is missing. The run is then unchanged.
        RuntimeError: If the saved run is still alive in another process.

    Example:
        >>> import tempfile, torch, adamas
        >>> from torch.nn import functional as F
        >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
        >>> def made():
        ...     model = torch.nn.Linear(2, 2)
        ...     return adamas.make_private(
        ...         model, adamas.rules.Adam(model.parameters()), data,
        ...         lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        ...         batch_size=10, steps=4, noise_multiplier=1.0, delta=1e-3, seed=1)
        >>> run = made()
        >>> for step in run:
        ...     if step.number == 2:
        ...         break
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run.save(f"{folder}/run.safetensors")
        ...     other = adamas.load(f"{folder}/run.safetensors", made())
        >>> other.steps_done, torch.equal(other.model.weight, run.model.weight)
        (2, True)
    """
    checkpoints = Checkpoints(path)
    with together(run.ranks):
        if run.ranks is None or run.ranks.is_writer:
            state = checkpoints.read()
        else:
            state = read_archive(checkpoints.path, _KIND, _VERSION)["state"]
        if run.ranks is not None:
            run.ranks.roll_call("adamas.load", {})
    run.load_state_dict(state)
    told = told_by_writer(
        run.ranks,
        lambda: json.dumps([[one.plain() for one in part] for part in checkpoints.releases()]).encode(),
    )
    run.recover([[Release.of(value) for value in part] for part in json.loads(told)], checkpoints)
    return run


def _versions() -> dict[str, str]:
    """Lists versions that the last bits of a release depend on."""
    own = {"adamas": __version__, "python": platform.python_version()}
    own |= {"compiled": str(sums_kernel.available()), "threads": str(torch.get_num_threads())}
    return own | {name: _version_of(name) for name in _PACKAGES}


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
