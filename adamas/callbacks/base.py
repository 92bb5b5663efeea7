"""Defines callbacks, and the parts of a run and of a step that they use."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from torch import nn

from adamas.distributed import Ranks


class WatchedRun(Protocol):
    """The part of a private run that the callbacks here use."""

    @property
    def model(self) -> nn.Module:
        """The model."""

    @property
    def ema_model(self) -> nn.Module | None:
        """The moving average of its weights; None if there is none."""

    @property
    def private(self) -> bool:
        """False for a run that releases something without noise."""

    @property
    def ranks(self) -> Ranks | None:
        """The processes of a data-parallel run; None for one process."""

    def metrics(self) -> dict[str, float]:
        """Returns public numbers of the last step."""

    def stop(self) -> None:
        """Ends the training after the current step."""


class FinishedStep(Protocol):
    """The part of a step that the callbacks here use."""

    @property
    def number(self) -> int:
        """1, 2, ..."""

    @property
    def total(self) -> int:
        """Steps of the whole run."""

    @property
    def ends_epoch(self) -> bool:
        """Whether it is the last step of its epoch."""


Callback: TypeAlias = Callable[[Any, Any], None]
"""`callback(run, step)`, with a `PrivateRun` and its `Step`."""


def is_writer(run: WatchedRun) -> bool:
    """Tells whether this process writes the logs of a run. In a data-parallel run, one does."""
    return run.ranks is None or run.ranks.is_writer
