"""Makes the run of a private loop from the arguments of `PrivacyEngine`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from adamas import _validate
from adamas.integrations.opacus.accountant import check_delta
from adamas.integrations.opacus.arguments import check_loader, check_objects, own_collate
from adamas.integrations.opacus.training import Replayed, Training
from adamas.loading import dataset_length
from adamas.run.calibration import calibrated
from adamas.run.options import RunOptions
from adamas.run.validation import validated


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of the private steps; `PrivacyEngine.make_private` explains them.

    Attributes:
        loss_reduction: "mean" or "sum".
        criterion: The criterion of the ghost mode; None in other modes, where the loop has its own.
        poisson_sampling: False for shuffled batches.
        clip_norm: The radius of clipping.
        noise_multiplier: The noise; None with a budget.
        epsilon: The budget; None for none.
        delta: The delta of the budget.
        epochs: Epochs that the budget pays for; without a budget, the loop has no end.
    """

    loss_reduction: str
    criterion: Any
    poisson_sampling: bool
    clip_norm: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    epochs: int = 1


def make_training(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: DataLoader[Any],
    terms: Terms,
    *,
    accountant: str,
    secure: bool,
    seed: int | None,
) -> Training:
    """Checks the objects, calibrates the noise, and makes the run."""
    check_objects(module, optimizer, data_loader)
    check_loader(data_loader, poisson_sampling=terms.poisson_sampling)
    n = dataset_length(data_loader.dataset)
    _validate.count(epochs=terms.epochs)
    if terms.noise_multiplier is None:
        check_delta(n, target_delta=terms.delta)
    reduction = getattr(terms.criterion, "reduction", terms.loss_reduction)
    if reduction != terms.loss_reduction:
        raise ValueError(
            f"Expected criterion.reduction={reduction!r} to be loss_reduction, {terms.loss_reduction!r}."
        )
    assert data_loader.batch_size is not None
    replayed = Replayed()
    arguments = validated(
        module,
        optimizer,
        data_loader.dataset,
        replayed.loss(),
        RunOptions(
            batch_size=data_loader.batch_size,
            steps=terms.epochs * len(data_loader),
            noise_multiplier=terms.noise_multiplier,
            epsilon=terms.epsilon,
            delta=terms.delta or 0.1 / n,  # without a budget, of run.epsilon() only
            clip_norm=terms.clip_norm,
            seed=seed,
            noise="secure" if secure else "reproducible",
            sampling="poisson" if terms.poisson_sampling else "shuffled",
            collate_fn=own_collate(data_loader),
            num_workers=data_loader.num_workers,
            accountant=accountant,
            progress=False,
        ),
    )
    return Training(
        arguments,
        calibrated(arguments),
        replayed,
        steps_per_epoch=len(data_loader),
        reduction=terms.loss_reduction,
    )
