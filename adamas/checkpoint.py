"""Checkpoints: a run in a file, and what it has released since that file was written.

A checkpoint is one file (`adamas._archive`): model, rule, scheduler, average, position of sampler and noise,
ledger, settings and versions of packages, and nothing without noise. From a file on, releases are also
written to a journal beside it, ahead of being made (`adamas.journal`), so that after a crash the spending is
known.
"""

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from adamas import _sums_kernel
from adamas._archive import read_archive, write_archive
from adamas._version import __version__
from adamas.journal import Journal

_KIND, _VERSION = "checkpoint", 1
_PACKAGES = ("torch", "numpy", "numba", "dp-accounting")


class Resumable(Protocol):
    """What `load` needs of a run."""

    steps_done: int
    checkpoints: "Checkpoints | None"

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues a saved state."""

    def recover(self, parts: Sequence[Sequence[tuple[int, float]]], *, repeatable: bool) -> None:
        """Takes over releases that were made after the state was saved."""


AnyRun = TypeVar("AnyRun", bound=Resumable)


class Checkpoints:
    """The file in which a run is kept, and its journal.

    Args:
        path: The file.
        every: Steps from one automatic checkpoint to the next; None for none.
    """

    def __init__(self, path: str | Path, every: int | None = None) -> None:
        self.path = Path(path)
        self.every = every
        self._journal = Journal(self.path)

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the file by one with this state, and begins a new journal."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_archive(self.path, _KIND, _VERSION, {"state": state, "versions": _versions()})
        self._journal.clear()

    def release(self, step: int, noise_multiplier: float) -> None:
        """Puts a release into the journal, before it is made."""
        self._journal.append(step, noise_multiplier)

    def lost_releases(self, since: int) -> list[list[tuple[int, float]]]:
        """The releases that the journal knows, from a step on, those of each process that died."""
        return self._journal.parts(since)


def load(path: str | Path, run: AnyRun) -> AnyRun:
    """Continues a saved run: one that `run.save(path)` wrote, or that was saved by itself.

    Make the run as the saved one was made, with `make_private` and the same arguments, and load the file into
    it. What the saved run released after the file was written is known from the journal beside it. A run
    with a given seed makes these steps again, bit for bit the same, so that they are counted once: this
    needs the same data, loss and packages. Otherwise they are different releases, and are charged.

    Args:
        path: The file.
        run: A fresh run with the settings of the saved one.

    Returns:
        The run, which continues where the file was written, and keeps the journal of that file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, of a newer format, or of a run with other settings or another model. The
            run is then as it was.

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
    content = read_archive(checkpoints.path, _KIND, _VERSION)
    run.load_state_dict(content["state"])
    lost = checkpoints.lost_releases(run.steps_done)
    if lost:
        run.recover(lost, repeatable=content["versions"] == _versions())
    if run.checkpoints is None:
        run.checkpoints = checkpoints
    return run


def _versions() -> dict[str, str]:
    """What the last bits of a release depend on."""
    own = {"adamas": __version__, "python": platform.python_version()}
    own |= {"compiled": str(_sums_kernel.available()), "threads": str(torch.get_num_threads())}
    return own | {name: _version_of(name) for name in _PACKAGES}


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
