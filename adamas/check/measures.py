"""What the checks measure on a run: losses and gradients, and how far two of them are apart."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from adamas.engines import trainable_parameters
from adamas.run.loop import PrivateRun, model_randomness

# Of the longest gradient of several: rounding is not measured against what is shorter.
_SHORTEST = 1e-3


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


def apart(a: Mapping[Tensor, Tensor], b: Mapping[Tensor, Tensor]) -> tuple[float, float]:
    """How far two gradients are apart, and how long the longer one is."""
    squares = math.fsum(float((a[p].double() - b[p].double()).square().sum()) for p in a)
    return math.sqrt(squares), max(length(a), length({p: b[p] for p in a}))


def relative(pairs: Iterable[tuple[float, float]]) -> float:
    """The largest distance in terms of its length; what is far shorter than the longest counts as longer."""
    held = list(pairs)
    least = _SHORTEST * max((size for _, size in held if math.isfinite(size)), default=0.0)
    worst = 0.0
    for distance, size in held:
        if not math.isfinite(distance):
            return math.inf
        if distance:
            worst = max(worst, distance / max(size, least)) if max(size, least) else math.inf
    return worst


def tolerance(run: PrivateRun) -> float:
    """What rounding may do to a gradient, relative to it, in the model's number types."""
    coarsest = max(torch.finfo(p.dtype).eps for p in trainable_parameters(run.model).values())
    return float(min(0.1, 1e4 * coarsest))


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two vectors of losses are equal but for rounding."""
    relative = min(0.1, 100 * torch.finfo(a.dtype).eps)
    return torch.allclose(a.double(), b.double(), rtol=relative, atol=relative, equal_nan=True)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, type and values; NaN is the same as NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())
