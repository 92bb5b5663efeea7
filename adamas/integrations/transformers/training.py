"""Runs one private training inside a trainer's loop.

The trainer's loop iterates over tickets, which hold no data. For each step it

1. calls `training_step`, which draws a batch, and releases its private gradient;
2. clips what it finds in `p.grad`, which is nothing;
3. announces the step of the optimizer, and `PrivacyCallback` writes the release to the rule;
4. lets the rule step, then the scheduler, and clears the gradients.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from adamas._streams import python_randomness_restored
from adamas.integrations._movement import Movement, lr_of
from adamas.loading import Batch
from adamas.privatize import PrivateGradient
from adamas.run import PrivateRun


class Tickets(DataLoader[int]):
    """Stands for the batches of an epoch in the loop of a trainer: each one is an empty dictionary.

    Args:
        count: Calls of `training_step` in an epoch.
        records: The number of records of the data set.
    """

    def __init__(self, count: int, records: int) -> None:
        super().__init__(range(count), batch_size=1, collate_fn=_nothing)  # type: ignore[arg-type]
        self.records = records


def _nothing(numbers: list[int]) -> dict[str, object]:
    return {}


class Training:
    """The run of a trainer, between its batches and its rule.

    Args:
        run: The run.
        planned: Steps that the trainer plans.

    Attributes:
        run: As given.
        ended_before: Whether the run had no steps left when the training began.
    """

    def __init__(self, run: PrivateRun, planned: int) -> None:
        self.run = run
        self._planned = planned
        self._paid_before = run.ledger.entries
        self._batches: Iterator[Batch] | None = None
        self._release: PrivateGradient | None = None
        self._moved = False
        self._movement: Movement | None = None
        self.ended_before = self.finished

    def release(self, step: int) -> None:
        """Releases the private gradient of the next batch, and keeps it for `hand_over`.

        Args:
            step: The number of steps that the trainer has made.
        """
        if self._release is not None:
            raise RuntimeError(
                "Expected the trainer to step on each release, but the last one was never written to the "
                "rule: a callback of this package was removed. Leave trainer.callback_handler as it is."
            )
        if step != self.run.steps_done:
            raise RuntimeError(
                f"Expected the trainer at step {self.run.steps_done} of the run, found it at {step}. Resume "
                "by train(resume_from_checkpoint=...), with a checkpoint that holds both."
            )
        if self._batches is None:
            self._batches = self.run.batches()
        batch = next(self._batches, None)
        if batch is None:
            raise RuntimeError(
                f"Expected the trainer to stop after step {self.run.steps_done} of {self.run.steps}, where "
                "the run has ended, but it goes on. Let callbacks neither clear "
                "control.should_training_stop nor raise state.max_steps; to stop early, set "
                "control.should_training_stop, not run.stop()."
            )
        with python_randomness_restored():  # the trainer saves these generators with its checkpoints
            self._release = self.run.privatize(batch)

    def hand_over(self) -> None:
        """Writes the release to the rule, right before its step."""
        if self._release is None:
            raise RuntimeError("Expected a release before the step of the rule.")
        if not self._moved and lr_of(self.run.rule) > 0:
            self._movement = Movement(self.run.model)
        self._release.write_to(self.run.rule)
        self._release = None

    def stepped(self) -> None:
        """Checks the first step that can move the weights."""
        if self._movement is not None:
            self._movement.check()
            self._movement, self._moved = None, True

    @property
    def has_released(self) -> bool:
        """Whether the ledger has grown since the training began, also by a step that was not finished."""
        return self.run.ledger.entries != self._paid_before

    @property
    def shortened(self) -> bool:
        """Whether the budget pays for fewer steps than planned: releases of a run that died count."""
        return self.run.steps < self._planned

    @property
    def finished(self) -> bool:
        """Whether the run has no steps left."""
        return self.run.steps_done >= self.run.steps

    def close(self) -> None:
        """Ends the batches, and returns to the data set's ledger what was not released."""
        self._batches = None
        self.run.close()

    @staticmethod
    def file(folder: str | Path) -> Path:
        """Returns the file of the run in a folder of a checkpoint."""
        return Path(folder) / RUN_FILE


RUN_FILE = "adamas.safetensors"
"""The run, in the folder of a checkpoint: weights, rule, sampler, noise, ledger. Its journal is beside it."""


def zero(device: torch.device) -> torch.Tensor:
    """Returns 0 in place of the loss, which is private."""
    return torch.zeros((), device=device)
