"""Writes the public metrics of a run to TensorBoard, Weights & Biases or MLflow."""

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adamas import _validate
from adamas._words import in_float32
from adamas.callbacks.base import FinishedStep, WatchedRun, is_writer


class Tracker(ABC):
    """Writes `run.metrics()` every few steps, and at the last one, also if the loop ends early.

    The names begin with "private/", or with "NOT_PRIVATE/" for a run without noise.

    Args:
        every: Steps from one entry to the next.
    """

    def __init__(self, every: int) -> None:
        _validate.count(every=every)
        self._every = every

    def __call__(self, run: WatchedRun, step: FinishedStep) -> None:
        """Writes the metrics of a step."""
        if self._is_due(step):
            self._write(run, step)

    def finish(self, run: WatchedRun, step: FinishedStep) -> None:
        """Writes the metrics of the step where the loop ended: more was spent than the last entry says."""
        if not self._is_due(step):
            self._write(run, step)

    def _is_due(self, step: FinishedStep) -> bool:
        return step.number % self._every == 0 or step.number == step.total

    def _write(self, run: WatchedRun, step: FinishedStep) -> None:
        if is_writer(run):
            group = "private" if run.private else "NOT_PRIVATE"
            metrics = {f"{group}/{name}": value for name, value in run.metrics().items() if name != "step"}
            self.write({name: value for name, value in metrics.items() if math.isfinite(value)}, step.number)

    @abstractmethod
    def write(self, metrics: dict[str, float], step: int) -> None:
        """Writes numbers for a step."""


def finish_trackers(callbacks: Iterable[object], run: WatchedRun, step: FinishedStep) -> None:
    """Lets the trackers among the callbacks of a run write its last entry."""
    for callback in callbacks:
        if isinstance(callback, Tracker):
            callback.finish(run, step)


class TensorBoard(Tracker):
    """Writes to TensorBoard.

    Args:
        folder: The folder of the event files.
        every: Steps from one entry to the next.

    Example::

        make_private(..., callbacks=[TensorBoard("runs/mine", every=10)])
    """

    def __init__(self, folder: str | Path, *, every: int = 1) -> None:
        super().__init__(every)
        self._folder = str(folder)
        self._module = _imported("torch.utils.tensorboard", package="tensorboard", extra="tensorboard")
        self._writer: Any = None

    def write(self, metrics: dict[str, float], step: int) -> None:
        """See `Tracker.write`."""
        if self._writer is None:
            self._writer = self._module.SummaryWriter(self._folder)
        for name, value in metrics.items():
            is_bound = name.endswith(("/epsilon", "/delta"))
            self._writer.add_scalar(name, in_float32(value) if is_bound else value, step)
        self._writer.flush()  # nobody closes the file


class WandB(Tracker):
    """Writes to a run of Weights & Biases.

    Args:
        run: The result of `wandb.init(...)`.
        every: Steps from one entry to the next.
    """

    def __init__(self, run: Any, *, every: int = 1) -> None:
        super().__init__(every)
        if not callable(getattr(run, "log", None)):
            raise TypeError(f"Expected run={run!r} to be the result of wandb.init(...).")
        self._run = run

    def write(self, metrics: dict[str, float], step: int) -> None:
        """See `Tracker.write`."""
        self._run.log(metrics, step=step)


class MLflow(Tracker):
    """Writes to a run of MLflow.

    Args:
        run_id: The run; None for the active one, or a new one.
        every: Steps from one entry to the next.
    """

    def __init__(self, run_id: str | None = None, *, every: int = 1) -> None:
        super().__init__(every)
        self._run_id = run_id
        self._mlflow = _imported("mlflow", package="mlflow", extra="mlflow")

    def write(self, metrics: dict[str, float], step: int) -> None:
        """See `Tracker.write`."""
        self._mlflow.log_metrics(metrics, step=step, run_id=self._run_id)


def _imported(module: str, *, package: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"This callback needs {package}: pip install 'adamas[{extra}]'.") from error
