"""Plain autograd, one example at a time: the reference that engines are compared with.

`one_by_one` differentiates the loss of each example alone. `assert_exact` compares the norms and sums of the
fast engine with it, in three geometries.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from adamas import Geometry
from adamas.engines import Bookkeeping, trainable_parameters

TOLERANCE = 1e-9

Gradients = list[dict[Tensor, Tensor]]
Batch = tuple[Tensor, ...]


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Computes a non-linear loss for each example. `batch[1]` has a factor for each."""
    out = model(batch[0]).flatten(1)
    return batch[1] * (out.square().sum(1) + (3 * out).sin().sum(1))


def one_by_one(model: nn.Module, batch: Batch, loss: Callable[..., Tensor] = loss) -> Gradients:
    """Differentiates the loss of each example alone."""
    params = [p for p in model.parameters() if p.requires_grad]
    result = []
    for i in range(len(batch[0])):
        value = loss(model, tuple(x[i : i + 1] for x in batch)).sum()
        gradients = torch.autograd.grad(value, params, allow_unused=True)
        zipped = zip(params, gradients, strict=True)
        result.append({p: torch.zeros_like(p) if g is None else g.detach() for p, g in zipped})
    return result


def whitened_norms(gradients: Gradients, geometry: Geometry) -> Tensor:
    """Computes the whitened norm of each example's gradient in float64."""
    totals = []
    for gradient in gradients:
        total = 0.0
        for p, g in gradient.items():
            c = 0.0 if geometry.center is None else geometry.center.get(p, 0.0)
            total += float((((g.double() - c) / geometry.scale[p]) ** 2).sum())
        totals.append(math.sqrt(total))
    return torch.tensor(totals, dtype=torch.float64)


def summed(gradients: Gradients, weights: Tensor) -> dict[Tensor, Tensor]:
    """Adds up weighted gradients. A gradient with weight 0 is left out, even if it is not finite."""
    total = {p: torch.zeros_like(g) for p, g in gradients[0].items()}
    for w, gradient in zip(weights.tolist(), gradients, strict=True):
        if w:
            for p, g in gradient.items():
                total[p] += w * g
    return total


def close(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    """Asserts that two tensors agree, relative to the largest expected value."""
    assert actual.shape == expected.shape
    if not expected.numel():
        return
    scale = 1 + float(expected.abs().max())
    worst = float((actual - expected).abs().max())
    assert worst <= tolerance * scale, f"off by {worst:g} at size {scale:g}"


def ball(model: nn.Module, radius: float = 1.0) -> Geometry:
    return Geometry.ball(trainable_parameters(model).values(), radius)


def geometries(model: nn.Module, seed: int = 7) -> list[Geometry]:
    """Returns a ball, a center with a scale per coordinate, and a center with a scale per parameter."""
    draw = torch.Generator().manual_seed(seed)
    params = list(trainable_parameters(model).values())

    def center() -> dict[Tensor, Tensor]:
        return {p: 0.3 * torch.randn(p.shape, generator=draw, dtype=p.dtype) for p in params}

    scale = {p: 0.5 + torch.rand(p.shape, generator=draw, dtype=p.dtype) for p in params}
    return [
        ball(model, 0.8),
        Geometry(center(), scale),
        Geometry(center(), {p: 0.7 + 0.1 * i for i, p in enumerate(params)}),
    ]


def some_weights(n: int, seed: int = 8) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    weights = 0.2 + torch.rand(n, generator=draw, dtype=torch.float64)
    if n > 2:
        weights[1] = 0.0
    return weights


def assert_exact(
    model: nn.Module,
    batch: Batch,
    loss: Callable[..., Tensor] = loss,
    gradients: Gradients | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Compares the norms and the weighted sum of a new engine in each of three geometries."""
    expected = one_by_one(model, batch, loss) if gradients is None else gradients
    weights = some_weights(len(batch[0]))
    for geometry in geometries(model):
        built = Bookkeeping(model, loss, batch)
        close(built.norms(geometry), whitened_norms(expected, geometry), tolerance)
        sums = built.weighted_sum(weights)
        total = summed(expected, weights)
        assert set(sums) == set(total)
        for p, value in total.items():
            close(sums[p], value, tolerance)


def norms(model: nn.Module, batch: Batch, loss: Callable[..., Tensor] = loss) -> Tensor:
    """Computes the norms of a batch in a ball, with the fast engine."""
    return Bookkeeping(model, loss, batch).norms(ball(model))
