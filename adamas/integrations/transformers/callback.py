"""Hooks a private training into those places of a trainer's loop that only callbacks reach."""

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from adamas.integrations.transformers.training import Training
from adamas.run import PrivateRun


class PrivacyCallback(TrainerCallback):
    """Makes the run when training begins, and hands each release to the rule right before its step.

    Args:
        begin: Makes the training, once the trainer has model, rule, schedule and number of steps.
    """

    def __init__(self, begin: Callable[[], Training]) -> None:
        self._begin = begin
        self._training: Training | None = None
        self._released_before = False

    @property
    def training(self) -> Training:
        """The training in progress."""
        if self._training is None:
            raise RuntimeError("Expected a training in progress: call trainer.train().")
        return self._training

    @property
    def has_begun(self) -> bool:
        """Whether there is a training, in progress or finished."""
        return self._training is not None

    @property
    def has_released(self) -> bool:
        """Whether any training of the trainer has released something, or continued a run that had."""
        return self._released_before or (self._training is not None and self._training.has_released)

    def continues(self, run: PrivateRun) -> None:
        """Notes that a run was continued: it may have spent, or its journal may have releases that count."""
        self._released_before |= bool(run.ledger.entries) or run.epsilon_bound() > 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Makes the run."""
        self._released_before = self.has_released  # of all trainings so far
        self._training = self._begin()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Writes the release to the rule: after the trainer has clipped what it found in the gradients."""
        self.training.hand_over()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks the first step, and stops when the budget is spent."""
        self.training.stepped()
        if self.training.finished:
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Returns what was reserved and not released to the data set's ledger."""
        self.training.close()
