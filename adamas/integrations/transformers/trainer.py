"""Trainers whose training is private."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer
from transformers.trainer_utils import RemoveColumnsCollator
from transformers.utils import logging

from adamas.errors import BudgetError, UnsupportedError
from adamas.integrations.transformers.arguments import check_arguments, check_precision
from adamas.integrations.transformers.callback import PrivacyCallback
from adamas.integrations.transformers.cards import add_privacy
from adamas.integrations.transformers.checkpoints import check_rule_state, folder_to_resume, load_schedule
from adamas.integrations.transformers.logs import privacy_metrics, public
from adamas.integrations.transformers.objective import (
    check_evaluation,
    check_methods,
    check_optimizers,
    given_datasets,
    loss_for,
)
from adamas.integrations.transformers.privacy import Privacy
from adamas.integrations.transformers.quiet import PREPARING, RELEASING, quiet
from adamas.integrations.transformers.rule import make_rule
from adamas.integrations.transformers.trackers import check_trackers
from adamas.integrations.transformers.training import Tickets, Training, zero
from adamas.loading import dataset_length
from adamas.run import PrivateRun
from adamas.run.checkpoint import load
from adamas.run.make import make_private

_logger = logging.get_logger(__name__)

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object


class PrivateTrainerMixin(_Base):
    """Makes a `transformers.Trainer` train privately; put it before the trainer's class in the bases.

    `per_device_train_batch_size` times `gradient_accumulation_steps` is the expected batch size of a step,
    and `per_device_train_batch_size` the number of records processed at once. The noise is calibrated to all
    steps that `num_train_epochs` or `max_steps` plan; a training that stops early spends less. Everything
    else keeps its meaning in transformers, or is refused: `arguments` has the table.

    Args:
        *args: Arguments of the trainer's class.
        privacy: The guarantee.
        **kwargs: Arguments of the trainer's class.
    """

    def __init__(self, *args: Any, privacy: Privacy, **kwargs: Any) -> None:
        if not isinstance(privacy, Privacy):
            raise TypeError(f"Expected privacy to be a Privacy, got {type(privacy).__name__}.")
        check_methods(type(self), PrivateTrainerMixin)
        self._given, evaluated = given_datasets(super().__init__, args, kwargs)
        check_evaluation([self._given], evaluated)  # before they are prepared
        with quiet(PREPARING):
            super().__init__(*args, **kwargs)
        check_evaluation([self.train_dataset], self.eval_dataset)
        self.privacy = privacy
        self._private = PrivacyCallback(self._begin)
        self._folder: str | None = None
        self._data: tuple[Dataset[Any], Any] | None = None
        self.callback_handler.callbacks.insert(0, self._private)
        self._check()
        check_optimizers(self)
        check_precision(self.accelerator.mixed_precision)

    # --- what the user asks ---------------------------------------------------------------------------

    @property
    def run(self) -> PrivateRun:
        """The run, once `train` has begun."""
        return self._private.training.run

    def epsilon(self) -> float:
        """Returns the epsilon spent so far, at the run's delta."""
        return self.run.epsilon()

    def privacy_statement(self) -> str:
        """States the guarantee in words, for a report."""
        return self.run.privacy_statement()

    # --- the training ---------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as `Trainer.train` does, within the budget.

        Args:
            resume_from_checkpoint: A folder that a private trainer saved, or True for the last one in
                output_dir. Its ledger continues, and releases made after it was saved count.
            *args: Other arguments of `Trainer.train`.
            **kwargs: Other arguments of `Trainer.train`.

        Returns:
            A `TrainOutput` with the privacy metrics. Its training_loss is NaN: the loss is private.
        """
        self._check()
        check_methods(type(self), PrivateTrainerMixin)
        if any(args[:1]) or kwargs.get("trial") is not None:
            raise UnsupportedError(
                "Expected no hyperparameter search: the best of several trainings reveals more than "
                "one ledger counts. Give every training its own trainer and one Privacy(data_ledger=...)."
            )
        self._folder = folder_to_resume(self, resume_from_checkpoint)
        if self._folder is None and self._private.has_released:
            raise RuntimeError(
                "Expected one train() of a private trainer: another one would release more than its budget. "
                "Continue with train(resume_from_checkpoint=...), or make a new trainer, with one "
                "Privacy(data_ledger=...) for both."
            )
        result = super().train(self._folder, *args, **kwargs)
        metrics = public(result.metrics) | privacy_metrics(self.run)
        return result._replace(training_loss=float("nan"), metrics=metrics)

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        """Releases the private gradient of a batch, at the last of its calls for a step.

        Args:
            model: The model.
            inputs: A ticket without data.
            num_items_in_batch: Not used.

        Returns:
            0, in the place of the loss, which is private.
        """
        if self.accelerator.sync_gradients:
            model.train()
            with quiet(RELEASING):
                self._private.training.release(self.state.global_step)
        return zero(self.args.device)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Returns tickets for a step; none if the training is resumed after its last step."""
        if self._private.training.ended_before:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Returns tickets for the trainer's loop; the run loads the data set by its own sampling."""
        self._data = self._dataset_and_collator()
        records = dataset_length(self._data[0])
        batch_size = self._expected_batch_size()
        if batch_size > records:
            raise ValueError(
                f"Expected per_device_train_batch_size x gradient_accumulation_steps = {batch_size} to be at "
                f"most the {records} records of train_dataset."
            )
        steps = -(-records // batch_size)
        return Tickets(steps * self.args.gradient_accumulation_steps, records)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluates as `Trainer.evaluate` does; metrics are not covered by the guarantee."""
        check_evaluation([self._given, self.train_dataset], eval_dataset)
        return super().evaluate(eval_dataset, *args, **kwargs)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predicts as `Trainer.predict` does; trackers get the metrics, without noise."""
        check_evaluation([self._given, self.train_dataset], test_dataset)
        return super().predict(test_dataset, *args, **kwargs)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Returns the number of records behind a loader."""
        return dataloader.records if isinstance(dataloader, Tickets) else super().num_examples(dataloader)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Makes the rule, in the place of an optimizer."""
        if self.optimizer is None:
            whole: Any = self.model if model is None else model
            decayed = self.get_decay_parameter_names(whole)
            self.optimizer = make_rule(whole, self.args, self.privacy, decayed)
        return self.optimizer

    @quiet(RELEASING)
    def _begin(self) -> Training:
        """Makes the run, or continues that of a checkpoint."""
        assert self._data is not None
        dataset, collate_fn = self._data
        privacy, planned, model = self.privacy, self.state.max_steps, cast(nn.Module, self.model)
        model.train()  # as it will be in each step: from_pretrained returns it in evaluation mode
        options = privacy.run_options(
            dataset_length(dataset),
            batch_size=self._expected_batch_size(),
            steps=planned,
            micro_batch_size=self.args.per_device_train_batch_size,
            collate_fn=collate_fn,
            num_workers=self.args.dataloader_num_workers,
            progress=False,
        )
        run = make_private(model, self._rule(), dataset, loss_for(self, privacy), **vars(options))
        if self._folder is not None:
            load(Training.file(self._folder), run)
            self._private.continues(run)
            check_rule_state(self._folder, run.rule)
            load_schedule(self._folder, self.lr_scheduler)
        training = Training(run, planned)
        if training.finished and run.steps_done < planned:
            raise BudgetError(
                f"The budget pays for no step after step {run.steps_done} of {planned}: releases made after "
                "the checkpoint count. Resume from the last checkpoint, or keep the model as it is "
                "trained now."
            )
        if training.shortened:
            _logger.warning(
                f"The budget pays for {run.steps} of {planned} steps, after which the training ends. "
                "Releases made before the training, or after the checkpoint, count."
            )
        return training

    # --- checkpoints, logs and cards ------------------------------------------------------------------

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs metrics without those that private data determines, and with the spent budget."""
        shown = public(logs)
        if len(shown) < len(logs) and self._private.has_begun:  # of the training
            shown |= privacy_metrics(self.run)
        super().log(shown, *args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes the model card as the trainer's class does, and adds the guarantee."""
        super().create_model_card(*args, **kwargs)
        if self._private.has_begun:
            add_privacy(Path(str(self.args.output_dir)) / "README.md", self.run)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.run.save(Training.file(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Leaves the rule's state to the run, which brings its ledger; see `_begin`."""

    # --- parts ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises, before anything is spent, for what cannot be kept."""
        check_arguments(self.args, self.privacy)
        check_trackers(self.callback_handler.callbacks, self.privacy)
        loss_for(self, self.privacy)
        if self.train_dataset is not None:
            dataset_length(self.train_dataset)

    def _dataset_and_collator(self) -> tuple[Dataset[Any], Any]:
        """Returns the data set without unused columns, and the collator, from the trainer's own loader."""
        loader = super().get_train_dataloader()
        collate = loader.collate_fn
        if isinstance(collate, RemoveColumnsCollator):  # its first call would change it, to log once
            collate = RemoveColumnsCollator(collate.data_collator, collate.signature_columns)
        return loader.dataset, collate

    def _expected_batch_size(self) -> int:
        size: int = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        return size

    def _rule(self) -> torch.optim.Optimizer:
        """Returns the rule inside accelerate's wrapper."""
        rule: Any = self.optimizer
        while not isinstance(rule, torch.optim.Optimizer) or hasattr(rule, "optimizer"):
            rule = rule.optimizer
        return rule


class PrivateTrainer(PrivateTrainerMixin, Trainer):
    """`transformers.Trainer`, trained privately; see `PrivateTrainerMixin`.

    Example::

        args = TrainingArguments("out", per_device_train_batch_size=16, gradient_accumulation_steps=16,
                                 num_train_epochs=3, learning_rate=1e-3)
        trainer = PrivateTrainer(model, args, train_dataset=records, privacy=Privacy(epsilon=8))
        trainer.train()
        print(trainer.privacy_statement())
    """
