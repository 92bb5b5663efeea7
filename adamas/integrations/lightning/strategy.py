"""A strategy with which a Lightning `Trainer` trains privately."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

import adamas
from adamas._words import rounded_up
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.ledger import Ledger
from adamas.engines import Loss
from adamas.errors import BudgetError, UnsupportedError
from adamas.integrations._movement import Movement, lr_of
from adamas.integrations.lightning import refusals
from adamas.integrations.lightning.keeps_ledger import KeepsLedger
from adamas.integrations.lightning.log_epsilon import log_epsilon, log_last_epsilon
from adamas.integrations.lightning.released import Written
from adamas.integrations.lightning.step_loss import takes_number, training_step_loss
from adamas.integrations.lightning.train_data import TrainData, Turns
from adamas.loading import Batch, dataset_length
from adamas.run.options import RunOptions


class PrivateTraining(KeepsLedger):
    """Makes `Trainer.fit` train with differential privacy: `Trainer(strategy=PrivateTraining(...))`.

    The module's `training_step` returns one loss per example, and its `configure_optimizers` a rule or any
    other optimizer. The strategy draws the batches, clips, adds noise and keeps the ledger; the `Trainer`
    does everything else. Epochs and steps come from the `Trainer`; data set, `collate_fn` and workers come
    from the loader. Everything that would train in another way is refused before anything is spent.

    Args:
        delta: As in `adamas.make_private`, like every argument whose text here is short.
        epsilon: The budget; or give noise_multiplier.
        noise_multiplier: The noise relative to the sensitivity; or give epsilon.
        max_epsilon: With `noise_multiplier`.
        batch_size: Expected number of examples of a step; None for the batch size of the loader.
        clip_norm: Radius to which an example's gradient is clipped.
        seed: A number makes the run reproducible.
        noise: "reproducible" or "secure".
        engine: How gradients of examples are computed.
        micro_batch_size: Maximum examples processed at once.
        sampling: How batches are drawn.
        max_batch_size: For `sampling="truncated-poisson"`.
        accountant: "pld" or "rdp".
        allow_large_delta: Accept a delta of 1/N or more.
        data_ledger: The ledger of the data set.
        spent: Earlier releases on the data, which count towards epsilon.
        loss: `loss(module, batch)`, one loss per example, instead of `training_step`.

    Example:
        >>> import torch, lightning.pytorch as pl
        >>> from torch.nn import functional as F
        >>> from adamas import rules
        >>> class Classifier(pl.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(2, 2)
        ...     def training_step(self, batch):
        ...         x, y = batch
        ...         return F.cross_entropy(self.layer(x), y, reduction="none")
        ...     def configure_optimizers(self):
        ...         return rules.AdamBC(self.parameters(), lr=0.1)
        >>> data = torch.utils.data.TensorDataset(torch.randn(50, 2), torch.ones(50).long())
        >>> private = PrivateTraining(epsilon=2.0, delta=1e-3, batch_size=10)
        >>> trainer = pl.Trainer(max_epochs=2, strategy=private, accelerator="cpu", logger=False,
        ...                      enable_checkpointing=False, enable_progress_bar=False,
        ...                      enable_model_summary=False)
        >>> trainer.fit(Classifier(), data)
        >>> trainer.global_step, 1.9 < private.run.epsilon() <= 2.0
        (10, True)
    """

    strategy_name = "private"

    def __init__(
        self,
        *,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        max_epsilon: float | None = None,
        batch_size: int | None = None,
        clip_norm: float = 1.0,
        seed: int | None = None,
        noise: str = "reproducible",
        engine: str = "auto",
        micro_batch_size: int | None = None,
        sampling: str = "poisson",
        max_batch_size: int | None = None,
        accountant: str = "pld",
        allow_large_delta: bool = False,
        data_ledger: str | Path | DataLedger | None = None,
        spent: Ledger | None = None,
        loss: Loss | None = None,
    ) -> None:
        super().__init__()
        self._batch_size, self._loss = batch_size, loss
        self._options = RunOptions(
            batch_size=1 if batch_size is None else batch_size,
            delta=delta,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            max_epsilon=max_epsilon,
            steps=1,
            clip_norm=clip_norm,
            seed=seed,
            noise=noise,
            engine=engine,
            micro_batch_size=micro_batch_size,
            sampling=sampling,
            max_batch_size=max_batch_size,
            accountant=accountant,
            allow_large_delta=allow_large_delta,
            data_ledger=data_ledger,
            spent=spent,
            progress=False,
        )
        self._data: TrainData | None = None
        self._batches: Iterator[Batch] = iter(())
        self._written: Written | None = None
        self._moved = False  # whether a step has shown that the weights move

    # --- what the Trainer asks for before the training -----------------------------------------------

    def process_dataloader(self, dataloader: Any) -> Any:
        """Takes the training data from its loader, and gives the Trainer turns in place of batches."""
        trainer = self._trainer
        if trainer.state.fn != TrainerFn.FITTING:
            return dataloader
        if not trainer.training:
            self._check_held_out(dataloader)
            return dataloader
        if self._data is not None:
            raise UnsupportedError("Expected one training DataLoader, got several. Join their data sets.")
        self._data = TrainData.of(dataloader)
        return Turns(-(-dataset_length(self._data.dataset) // self._expected_batch_size(self._data)))

    def setup_environment(self) -> None:
        """Checks the trainer and its module before a fit does anything else."""
        trainer, module = self._trainer, self._module
        if trainer.state.fn == TrainerFn.FITTING:
            if self._run is not None:
                raise RuntimeError(
                    "Expected a new PrivateTraining for each trainer.fit: the budget of this one is that of "
                    f"the first fit, which has spent epsilon = {rounded_up(self._run.epsilon())}. To go on, "
                    "continue its checkpoint with ckpt_path= in a new Trainer. To train again, give a new "
                    "PrivateTraining the ledger of this run, as spent=private.run.ledger."
                )
            self._data = self._resumed = None  # of a fit that was refused
            refusals.check_trainer(trainer)
            refusals.check_module(module, trainer.datamodule)
            if self._loss is None:
                takes_number(module)
        super().setup_environment()

    def setup(self, trainer: pl.Trainer) -> None:
        """Makes the run, or continues that of the checkpoint."""
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            refusals.check_places(trainer)
            trainer.fit_loop.setup_data()
            call._call_strategy_hook(trainer, "make_run")  # where self.log raises

    def make_run(self) -> None:
        """Makes the run, and tries model and loss on a few examples; `setup` calls this."""
        trainer = self._trainer
        data = self._data
        if data is None or not isinstance(trainer.train_dataloader, Turns):
            raise UnsupportedError(
                "Expected one DataLoader or data set for training, and limit_train_batches above 0. Pass it "
                "to trainer.fit as it is, not in a list or mapping."
            )
        options = replace(
            self._options,
            batch_size=self._expected_batch_size(data),
            steps=refusals.planned_steps(trainer),
            collate_fn=data.collate_fn,
            num_workers=data.num_workers,
        )
        module, rule = self._module, self.optimizers[0]
        with refusals.explained():
            run = adamas.make_private(
                module, rule, data.dataset, self._loss or training_step_loss, **vars(options)
            )
        if self._resumed is not None:
            adamas.load(self._resumed, run)
        self._run = run
        self._batches = run.batches()

    # --- the training ---------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """Checks that the loops of a checkpoint and its run are at the same step."""
        if self._trainer.global_step != self.run.steps_done:
            raise ValueError(
                f"Expected a checkpoint whose loops and run are at one step, got {self._trainer.global_step} "
                f"and {self.run.steps_done}: its files do not belong together."
            )
        self._stop_at_the_end()

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Moves a batch of an evaluation; a turn has nothing to move."""
        if self._trainer.training:
            return batch
        return super().batch_to_device(batch, device, dataloader_idx)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns NaN: the loss is private. `release_gradient` calls the module's own `training_step`."""
        refusals.check_turn(self._trainer)
        return torch.full((), torch.nan)

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Releases the private gradient instead of a backward, with Lightning's hooks around it."""
        module, precision = self._module, self.precision_plugin
        loss = precision.pre_backward(closure_loss, module)
        call._call_strategy_hook(self._trainer, "release_gradient")  # where self.log raises
        return precision.post_backward(loss, module)

    def release_gradient(self) -> None:
        """Releases the private gradient of the next batch, as the gradients of the parameters."""
        run = self.run
        if torch.is_anomaly_enabled():
            raise UnsupportedError(
                "Expected Trainer(detect_anomaly=False): it raises if one example has a NaN, which shows "
                "that the example is there. Look for NaN on synthetic data."
            )
        run.rule.zero_grad(set_to_none=True)
        batch = next(self._batches, None)
        if batch is None:
            raise BudgetError(
                f"Expected no step after {run.steps_done}: the budget pays for no more, or run.stop() was "
                "called. Lower min_epochs or min_steps of the Trainer, so that it can stop; to stop it, set "
                "trainer.should_stop."
            )
        with refusals.explained():
            release = run.privatize(batch)
        self._written = Written(release, run.rule)

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Steps on the release that the closure makes, and logs epsilon."""
        module, run = self._module, self._run
        movement = Movement(module) if not self._moved and lr_of(optimizer) > 0 else None
        self._written = None
        result = self.precision_plugin._wrap_closure(module, optimizer, closure)
        written, self._written = self._written, None
        if run is None or written is None:
            raise RuntimeError(
                "Expected one private gradient for the step, got none: the module or a callback stepped the "
                "optimizer, or skipped the backward. Leave both to the Trainer."
            )
        written.check()
        if optimizer is not run.rule:
            raise RuntimeError(
                f"Expected the optimizer of configure_optimizers, got another {type(optimizer).__name__}: a "
                "callback or hook has replaced it, and checkpoints would not have its state. Change the "
                "param_groups of the first one instead."
            )
        optimizer.step()
        if movement is not None:
            if run.noise_multiplier > 0:
                movement.check()
            self._moved = True
        if not module.trainer.barebones:
            log_epsilon(module, run.epsilon_bound())
        self._stop_at_the_end()
        return result

    def on_train_end(self) -> None:
        """Logs the last epsilon, and returns to the data set's ledger what was not released."""
        log_last_epsilon(self._trainer, self.run.epsilon_bound())
        self.run.close()

    # --- helpers --------------------------------------------------------------------------------------

    def _expected_batch_size(self, data: TrainData) -> int:
        size = self._batch_size or data.batch_size
        if size is None:
            raise ValueError("Expected batch_size= of PrivateTraining, or a DataLoader that has one.")
        return size

    def _check_held_out(self, loader: Any) -> None:
        if self._data is not None and getattr(loader, "dataset", loader) is self._data.dataset:
            raise UnsupportedError(
                "Expected validation data apart from the training data, got the same data set: its metrics "
                "would be logged without noise. Hold records out."
            )

    def _stop_at_the_end(self) -> None:
        """Stops the Trainer where the budget pays for fewer steps than it plans."""
        if self.run.steps_done >= self.run.steps < refusals.planned_steps(self._trainer):
            self._trainer.should_stop = True
