"""Calls the `training_step` of a Lightning module as a loss: one loss per example."""

import inspect
from typing import Any

import lightning.pytorch as pl
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn

from adamas.errors import UnsupportedError


def training_step_loss(module: nn.Module, batch: Any) -> Tensor:
    """Calls `training_step` on a batch of the run.

    Raises:
        UnsupportedError: If it logs, or returns anything but a tensor.
    """
    assert isinstance(module, pl.LightningModule)
    numbers = (max(0, module.trainer.fit_loop.batch_idx),) if takes_number(module) else ()
    try:
        losses = module.training_step(batch, *numbers)
    except (RuntimeError, MisconfigurationException) as error:
        if "self.log" in str(error) or "Logging inside" in str(error):
            raise UnsupportedError(
                "Expected training_step without self.log: what it computes from private examples has no "
                "noise. Log in validation_step, on public data; PrivateTraining logs epsilon."
            ) from error
        raise
    if not isinstance(losses, Tensor):
        raise UnsupportedError(
            "Expected training_step to return a tensor with one loss per example, got "
            f"{type(losses).__name__}. Compute it with reduction='none'."
        )
    return losses


def takes_number(module: pl.LightningModule) -> bool:
    """Tells whether `training_step` takes the number of the batch; raises if it takes anything else."""
    names = list(inspect.signature(module.training_step).parameters)
    if len(names) not in (1, 2) or "dataloader_iter" in names:
        raise UnsupportedError(
            f"Expected training_step(batch) or training_step(batch, batch_idx), got training_step"
            f"({', '.join(names)})."
        )
    return len(names) == 2
