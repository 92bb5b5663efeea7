"""Make private gradients, and step MicroAdam on them."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from adamas import PrivateGradient
from adamas.rules import Rule

STEPS = 50
SHAPES = [(9, 7), (40,), ()]


def problem(
    shapes: Sequence[tuple[int, ...]] = SHAPES, steps: int = STEPS, seed: int = 0
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Returns flat starting points, and the flat private gradients of each step."""
    rng = np.random.default_rng(seed)
    sizes = [math.prod(shape) for shape in shapes]
    starts = [rng.normal(size=size) for size in sizes]
    widths = [rng.lognormal(-1, 1, size) for size in sizes]
    return starts, [[rng.normal(0.2, width) for width in widths] for _ in range(steps)]


def parameters(
    starts: Sequence[np.ndarray],
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    return [
        nn.Parameter(torch.tensor(start, dtype=dtype).reshape(shape))
        for start, shape in zip(starts, shapes, strict=True)
    ]


def step(rule: Rule, params: Sequence[Tensor], gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Makes one step on these private gradients; returns the updates, flat."""
    before = [p.detach().clone() for p in params]
    PrivateGradient(
        {p: torch.tensor(g, dtype=p.dtype).reshape(p.shape) for p, g in zip(params, gradients, strict=True)},
        dict.fromkeys(params, 0.1),
    ).write_to(rule)
    rule.step()
    return [(p.detach() - b).flatten().double().numpy() for p, b in zip(params, before, strict=True)]


def vector(d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return nn.Parameter(torch.zeros(d, dtype=dtype))
