"""Refuses, before anything is spent, the features of Lightning that a private training must not use."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import callbacks
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities.model_helpers import is_overridden

from adamas.errors import UnsupportedError
from adamas.integrations.lightning.run_files import check_local

_TUNED = "it trains on the data before the run, outside the ledger. Choose the value beforehand"
_FIXED = "the model's trainable parameters must stay those that the noise was calibrated for"

CALLBACKS: dict[type[pl.Callback], str] = {
    callbacks.BackboneFinetuning: f"{_FIXED}. Freeze the backbone before trainer.fit",
    callbacks.BaseFinetuning: f"{_FIXED}. Freeze parameters before trainer.fit",
    callbacks.BatchSizeFinder: _TUNED,
    callbacks.DeviceStatsMonitor: "memory and load depend on the private size of each batch",
    callbacks.GradientAccumulationScheduler: "give the whole batch_size=, and micro_batch_size= for memory",
    callbacks.LearningRateFinder: _TUNED,
    callbacks.ModelPruning: f"{_FIXED}. Prune before trainer.fit",
    callbacks.SpikeDetection: "it watches the training loss, which is private",
    callbacks.StochasticWeightAveraging: (
        "it adds an epoch that trains nothing. Use lightning.pytorch.callbacks.EMAWeightAveraging"
    ),
    callbacks.ThroughputMonitor: "it reads the size of each batch, which is private",
}
"""Callbacks that are refused, and why."""

HOOKS = {
    "backward": "the gradient is the private one, without a backward of its own",
    "configure_gradient_clipping": "give clip_norm= to PrivateTraining, which clips each example",
    "on_after_batch_transfer": "change the examples in the data set, in collate_fn or in training_step",
    "on_before_batch_transfer": "change the examples in the data set, in collate_fn or in training_step",
    "optimizer_step": "the step must use the private gradient, once",
    "transfer_batch_to_device": "give batches of tensors, which the run moves itself",
}
"""Hooks of the module that must not be overridden, and why."""


def check_trainer(trainer: Any) -> None:
    """Raises for an argument or callback of the trainer that a private training cannot have."""
    for name, value, allowed, remedy in _arguments(trainer):
        if value not in allowed:
            raise UnsupportedError(f"Expected Trainer({name}={allowed[0]!r}), got {value!r}: {remedy}.")
    if isinstance(trainer.profiler, PyTorchProfiler):
        raise UnsupportedError(
            "Expected another profiler, got PyTorchProfiler: it records shapes and memory of private "
            "batches. Profile a training on synthetic data."
        )
    for callback in trainer.callbacks:
        for kind, reason in CALLBACKS.items():
            if isinstance(callback, kind):
                raise UnsupportedError(f"Expected callbacks= without {type(callback).__name__}: {reason}.")


def check_places(trainer: Any) -> None:
    """Raises if checkpoints would go to places where no journal can be kept."""
    check_local(trainer.default_root_dir, "default_root_dir")
    for saver in trainer.checkpoint_callbacks:
        if isinstance(saver, callbacks.ModelCheckpoint):
            check_local(saver.dirpath or "", "dirpath")


def _arguments(trainer: Any) -> Iterator[tuple[str, Any, Sequence[Any], str]]:
    """Yields arguments of a trainer: name, value, the values that are allowed, and the remedy for others."""
    yield (
        *("gradient_clip_val", trainer.gradient_clip_val, [None, 0]),
        "it would clip the noisy sum. Give clip_norm= to PrivateTraining, which clips each example",
    )
    yield (
        *("accumulate_grad_batches", trainer.accumulate_grad_batches, [1]),
        "give PrivateTraining the whole batch_size=, and as micro_batch_size= what fits the memory",
    )
    yield "overfit_batches", trainer.overfit_batches, [0], "the run draws batches from all of the data"
    yield (
        *("fast_dev_run", trainer.fast_dev_run, [False]),
        "one step on the data would spend the whole epsilon. Try the training on synthetic data",
    )
    yield (
        *("reload_dataloaders_every_n_epochs", trainer.reload_dataloaders_every_n_epochs, [0]),
        "the data set must stay the one that the noise was calibrated for",
    )
    precision = trainer.precision_plugin
    yield (
        *("precision", precision.precision, [Precision.precision]),
        "gradients of single examples are clipped in the precision of the weights. Leave it out; to train in "
        "16 bits, convert the module itself with .to(torch.bfloat16)",
    )
    yield "plugins", type(precision), [Precision], "the gradient would pass through it"
    yield (
        *("plugins", type(trainer.strategy.checkpoint_io), [TorchCheckpointIO]),
        "a checkpoint must be on the disk before its older run is deleted",
    )


def check_module(module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
    """Raises for a module, or a hook of it, that would train outside the private step."""
    if not module.automatic_optimization:
        raise UnsupportedError(
            "Expected automatic_optimization=True, got False: a manual_backward would give gradients without "
            "noise. Return one loss per example from training_step."
        )
    if module._compiler_ctx is not None:
        raise UnsupportedError(
            "Expected a module that is not compiled: the engines must see its calls. Pass the module itself."
        )
    for owner in (module, datamodule):
        for hook, reason in HOOKS.items():
            if owner is not None and hasattr(owner, hook) and is_overridden(hook, owner):
                raise UnsupportedError(f"Expected {type(owner).__name__} without {hook}: {reason}.")


def check_turn(trainer: Any) -> None:
    """Raises if a callback or hook changed how the Trainer steps during the training."""
    if trainer.accumulate_grad_batches != 1 or not trainer.lightning_module.automatic_optimization:
        raise UnsupportedError(
            "Expected accumulate_grad_batches=1 and automatic_optimization=True during the training, got "
            f"{trainer.accumulate_grad_batches!r} and {trainer.lightning_module.automatic_optimization!r}: "
            "each turn is one private step. Remove the callback or hook that changes them."
        )


@contextmanager
def explained() -> Iterator[None]:
    """Adds the remedy to an error for what the Trainer holds: the module refers to it."""
    try:
        yield
    except UnsupportedError as error:
        if "may remember one example" not in str(error):
            raise
        raise UnsupportedError(
            f"{error} If the Trainer holds it, give Trainer(enable_progress_bar=False, logger=False) or "
            "logger=CSVLogger(...): engine='loop' looks through it, because the module refers to it."
        ) from error


def planned_steps(trainer: Any) -> int:
    """Returns the steps that the trainer will make; raises if their number is not fixed."""
    steps = trainer.estimated_stepping_batches
    if steps == float("inf") or steps < 1 or trainer.max_epochs == 0:
        raise UnsupportedError(
            f"Expected a Trainer with a fixed number of steps, got max_epochs={trainer.max_epochs!r} and "
            f"max_steps={trainer.max_steps!r}: the noise is calibrated to them. Give max_epochs or max_steps."
        )
    return int(steps)
