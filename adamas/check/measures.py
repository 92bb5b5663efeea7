"""What the checks measure on a run: losses and gradients, and how far two of them are apart."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from adamas.engines import trainable_parameters
from adamas.run import PrivateRun, model_randomness


def recorded_events(run: PrivateRun) -> int:
    """How many events the ledger holds."""
    return sum(count for _, count in run.ledger.entries)


def losses(run: PrivateRun, data: Any, *, step: int = 0) -> Tensor:
    """The losses of a batch, with the random values of a step."""
    with model_randomness(run.noise.seed, step), torch.no_grad():
        return run.loss(run.model, data).detach()


def gradients(run: PrivateRun, data: Any, example: int) -> dict[Tensor, Tensor]:
    """The gradient of one example's loss in a batch, by plain autograd."""
    params = list(trainable_parameters(run.model).values())
    with model_randomness(run.noise.seed, 0), torch.enable_grad():
        loss = run.loss(run.model, data)[example]
        found = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
    return dict(zip(params, found, strict=True))


def length(gradient: Mapping[Tensor, Tensor]) -> float:
    """The norm over all parameters, in float64."""
    return math.sqrt(math.fsum(float(g.double().square().sum()) for g in gradient.values()))


def distance(a: Mapping[Tensor, Tensor], b: Mapping[Tensor, Tensor], least: float = 0.0) -> float:
    """How far two gradients are apart, relative to the longer one or to `least`; 0 if all vanish."""
    apart = length({p: a[p].double() - b[p].double() for p in a})
    longest = max(length(a), length(b), least)
    return apart / longest if longest > 0 else 0.0


def tolerance(run: PrivateRun) -> float:
    """What rounding may do to a gradient, relative to it, in the model's number types."""
    coarsest = max(torch.finfo(p.dtype).eps for p in trainable_parameters(run.model).values())
    return float(min(0.1, 1e4 * coarsest))


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two vectors of losses are equal but for rounding."""
    relative = min(0.1, 100 * torch.finfo(a.dtype).eps)
    return torch.allclose(a.double(), b.double(), rtol=relative, atol=relative, equal_nan=True)
