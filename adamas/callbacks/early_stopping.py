"""Stops a run when its score on other data no longer rises."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from adamas import _validate
from adamas.callbacks.base import FinishedStep, WatchedRun
from adamas.callbacks.paid_score import PaidScore
from adamas.distributed import told_by_writer
from adamas.errors import BudgetError


class EarlyStopping:
    """Stops a run once its score has not risen for a number of evaluations.

    The noise was calibrated for all planned steps, so a run that stops early spends less than its budget. The
    decision to stop is published with the result: compute the score from public data, or pay for it with
    `PaidScore`.

    Args:
        score: `score(model)` returns a number; larger is better. It gets the model in evaluation mode, with
            the moving average of the weights if the run has one.
        patience: Evaluations without a better score before the run stops.
        every: Steps between evaluations; None evaluates after each epoch.
        least_gain: A score is better only if it exceeds the best one by more than this.

    Attributes:
        score: As given.
        scores: All scores so far, with their steps.

    Example:
        >>> from adamas.callbacks import EarlyStopping
        >>> stopping = EarlyStopping(lambda model: 0.5, patience=2)  # make_private(..., callbacks=[stopping])
    """

    def __init__(
        self,
        score: Callable[[nn.Module], float],
        *,
        patience: int = 3,
        every: int | None = None,
        least_gain: float = 0.0,
    ) -> None:
        if not callable(score):
            raise TypeError(f"Expected score={score!r} to be a function score(model).")
        _validate.count(patience=patience)
        if every is not None:
            _validate.count(every=every)
        _validate.non_negative(least_gain=least_gain)
        self.score, self._patience, self._every, self._least_gain = score, patience, every, least_gain
        self.scores: list[tuple[int, float]] = []
        self._best, self._since = -math.inf, 0

    def __call__(self, run: WatchedRun, step: FinishedStep) -> None:
        """Evaluates the model if a score is due, and stops the run if scores no longer rise."""
        due = step.ends_epoch if self._every is None else step.number % self._every == 0
        if not due:
            return
        score = _told(run, lambda: float(_evaluated(self.score, run)))
        if math.isnan(score):
            raise ValueError(f"Expected a score at step {step.number}, got NaN.")
        self.scores.append((step.number, score))
        if score > self._best + self._least_gain:
            self._best, self._since = score, 0
        else:
            self._since += 1
        if self._since >= self._patience:
            run.stop()

    def evaluations(self, done: int, total: int, steps_per_epoch: int) -> int:
        """Counts the evaluations from step `done` to step `total`, if nothing stops the run before."""
        every = self._every or steps_per_epoch
        return total // every - done // every


def check_paid(callbacks: Iterable[object], *, done: int, total: int, steps_per_epoch: int) -> None:
    """Raises if a run would ask for more scores than are paid for.

    Args:
        callbacks: Those of the run.
        done: Its steps so far.
        total: Its steps in all.
        steps_per_epoch: Steps of an epoch.
    """
    asked: dict[PaidScore, int] = {}
    for callback in callbacks:
        if isinstance(callback, EarlyStopping) and isinstance(callback.score, PaidScore):
            count = callback.evaluations(done, total, steps_per_epoch)
            asked[callback.score] = asked.get(callback.score, 0) + count
    for score, count in asked.items():
        if count > score.left:
            raise BudgetError(
                f"Expected PaidScore to pay for each score of EarlyStopping: {count} evaluations in "
                f"{total - done} steps, but {score.left} of evaluations={score.evaluations} are left. Raise "
                "evaluations, or evaluate less often by EarlyStopping(every=...)."
            )


def check_resumable(callbacks: Iterable[object]) -> None:
    """Raises if a run that continues a saved one would spend a validation budget anew."""
    for callback in callbacks:
        score = callback.score if isinstance(callback, EarlyStopping) else callback
        if isinstance(score, PaidScore) and not score.outlives_the_process:
            raise ValueError(
                "Expected PaidScore(data_ledger=...) in a run that continues a saved one: without it, the "
                "evaluations of the earlier process are not known. Make the ledger by "
                "`adamas ledger create`, and give it from the start."
            )


def _evaluated(score: Callable[[nn.Module], float], run: WatchedRun) -> float:
    """Scores the model in evaluation mode, and puts every module back into its own mode."""
    model = run.model if run.ema_model is None else run.ema_model
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return score(model)
    finally:
        for module, training in modes:
            module.training = training


def _told(run: WatchedRun, score: Callable[[], float]) -> float:
    """Returns the score that the writing rank computes, so that all ranks stop at one step."""
    return float.fromhex(told_by_writer(run.ranks, lambda: score().hex().encode()).decode())
