"""Measures losses and gradients of a run, and how far two of them are apart."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from adamas._nests import map_tensors
from adamas.engines import trainable_parameters
from adamas.run.loop import PrivateRun, model_randomness

# Of the longest gradient of several: rounding is not measured against what is shorter.
_SHORTEST = 1e-3
_TRIED = 16  # examples of a batch


def recorded_events(run: PrivateRun) -> int:
    """Counts the events in the ledger."""
    return sum(count for _, count in run.ledger.entries)


def losses(run: PrivateRun, data: Any, *, step: int = 0) -> Tensor:
    """Computes the losses of a batch, with the random values of a step."""
    with model_randomness(run.noise.seed, step), torch.no_grad():
        return run.loss(run.model, data).detach()


def gradients(run: PrivateRun, data: Any, example: int) -> dict[Tensor, Tensor]:
    """Computes the gradient of one example's loss in a batch, by plain autograd."""
    params = list(trainable_parameters(run.model).values())
    with model_randomness(run.noise.seed, 0), torch.enable_grad():
        loss = run.loss(run.model, data)[example]
        found = torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
    return dict(zip(params, found, strict=True))


def engine_norms(run: PrivateRun, data: Any) -> Tensor:
    """Computes the norms of the examples' gradients by the run's engine; not finite for unusable examples."""
    with model_randomness(run.noise.seed, run.steps_done):
        return run.make_engine(run.model, run.loss, data).norms(run.geometry())


def finite(gradient: Mapping[Tensor, Tensor]) -> bool:
    """Tells whether a gradient is finite in all parameters."""
    return all(bool(g.isfinite().all()) for g in gradient.values())


def unusable_rows(run: PrivateRun, data: Any) -> set[int]:
    """Returns the examples of a batch that have no finite gradient, neither in the batch nor alone.

    One that has a finite gradient alone is usable, and spoiled by the others: a few are tried.
    """
    found = (~engine_norms(run, data).isfinite()).nonzero().flatten().tolist()
    tried = found[:: -(-len(found) // _TRIED) or 1]
    return set(found) - {i for i in tried if finite(gradients(run, rows_of(data, [i]), 0))}


def rows_of(data: Any, rows: Sequence[int]) -> Any:
    """Makes another batch of some rows of a batch."""
    return map_tensors(lambda x: x[torch.tensor(rows, device=x.device)], data)


def length(gradient: Mapping[Tensor, Tensor]) -> float:
    """Computes the norm over all parameters, in float64."""
    return math.sqrt(math.fsum(float(g.detach().double().square().sum()) for g in gradient.values()))


def apart(a: Mapping[Tensor, Tensor], b: Mapping[Tensor, Tensor]) -> tuple[float, float]:
    """Returns the distance of two gradients, and the length of the longer one."""
    squares = math.fsum(float((a[p].detach().double() - b[p].detach().double()).square().sum()) for p in a)
    return math.sqrt(squares), max(length(a), length({p: b[p] for p in a}))


def relative(pairs: Iterable[tuple[float, float]]) -> float:
    """Returns the largest distance relative to its length; lengths have a floor relative to the longest."""
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
    """Returns the relative rounding error that a gradient may have, in the model's number types."""
    coarsest = max(torch.finfo(p.dtype).eps for p in trainable_parameters(run.model).values())
    return float(min(0.1, 1e4 * coarsest))


def agree(a: Tensor, b: Tensor) -> bool:
    """Tells whether two vectors of losses are equal up to rounding."""
    relative = min(0.1, 100 * torch.finfo(a.dtype).eps)
    return torch.allclose(a.double(), b.double(), rtol=relative, atol=relative, equal_nan=True)


def same(a: Tensor, b: Tensor) -> bool:
    """Tells whether two tensors have the same shape, type and values; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())
