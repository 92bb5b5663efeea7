"""Step rules that shape the clipping, on releases computed from their formula in NumPy."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adamas import PrivateGradient
from adamas.rules import Rule

STEPS = 50
BATCH = 6.0
CLIP = 0.7
SHAPES = [(3, 4), (5,), ()]
D = 18
RATES = [0.1 / (1 + 0.05 * t) for t in range(STEPS)]


@dataclass(frozen=True)
class Problem:
    """A starting point, and for each step the per-example gradients and the standard normal draws."""

    theta: np.ndarray
    examples: list[np.ndarray]
    xi: list[np.ndarray]


def problem(seed: int) -> Problem:
    """Makes gradients of which some are clipped, and some batches that are empty."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1.5 * BATCH, STEPS)
    counts[[7, 8, 30]] = 0
    if seed % 2:
        counts[0] = 0  # the first release is noise alone
    # The examples of a step share a direction. Without it their mean would hardly vary, and every variance
    # would be at its lower bound.
    width, center = np.geomspace(0.02, 0.6, D), rng.normal(0, 0.1, D)
    common = [rng.normal(center * math.cos(0.1 * t), width) for t in range(STEPS)]
    examples = [
        rng.lognormal(0, 1, (n, 1)) * rng.normal(common[t], 0.3 * width, (n, D)) for t, n in enumerate(counts)
    ]
    return Problem(rng.normal(size=D), examples, [rng.normal(size=D) for _ in range(STEPS)])


def tensors(flat: np.ndarray) -> list[Tensor]:
    """Splits a flat vector into tensors of the parameters' shapes."""
    parts = torch.split(torch.tensor(flat), [math.prod(shape) for shape in SHAPES])
    return [part.reshape(shape).clone() for part, shape in zip(parts, SHAPES, strict=True)]


def parameters(flat: np.ndarray) -> list[Tensor]:
    return [nn.Parameter(part) for part in tensors(flat)]


def flat(params: Sequence[Tensor], values: Mapping[Tensor, Any] | None) -> np.ndarray:
    """Returns one value per coordinate as a flat vector; missing parameters have 0."""
    values = values or {}
    parts = [
        torch.as_tensor(values.get(p, 0.0), dtype=torch.float64).expand(p.shape).flatten() for p in params
    ]
    return torch.cat(parts).numpy()


def frame(rule: Rule, params: Sequence[Tensor], clip_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns center and scale of the next step as flat vectors."""
    geometry = rule.geometry().scaled(clip_norm)
    return flat(params, geometry.center), flat(params, geometry.scale)


def release_of(
    rule: Rule, params: Sequence[Tensor], g: np.ndarray, xi: np.ndarray, sigma: float, clip_norm: float
) -> tuple[PrivateGradient, np.ndarray]:
    """Makes the release c + s (sum_i u_i / max(1, |u_i|) + sigma xi) / B, where u = (g - c) / s.

    Returns it as a PrivateGradient, and its mean as a flat vector.
    """
    c, s = frame(rule, params, clip_norm)
    u = (g - c) / s
    total = (u / np.maximum(1, np.linalg.norm(u, axis=1, keepdims=True))).sum(axis=0)
    mean = c + s * (total + sigma * xi) / BATCH
    shapes = [p.shape for p in params]
    sizes = [p.numel() for p in params]
    parts, variances = (
        [
            part.reshape(shape).clone()
            for part, shape in zip(torch.split(torch.tensor(x), sizes), shapes, strict=True)
        ]
        for x in (mean, (s * sigma / BATCH) ** 2)
    )
    return PrivateGradient(
        dict(zip(params, parts, strict=True)), dict(zip(params, variances, strict=True))
    ), mean


def set_rate(rule: Rule, lr: float) -> None:
    for group in rule.param_groups:
        group["lr"] = lr


def assert_near(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Compares within 1e-10 of the largest value of each tensor."""
    for a, b in zip(tensors(actual), tensors(expected), strict=True):
        off = float((a - b).abs().max())
        assert off <= 1e-10 * float(b.abs().max()), f"{what}: off by {off:.1e} of {float(b.abs().max()):.1e}"


@dataclass(frozen=True)
class NoisyStep:
    """A step on zero gradients: its scale and noise, and the release and update that result."""

    scale: np.ndarray
    noise: np.ndarray
    release: np.ndarray
    update: np.ndarray


def noise_only(rule: Rule, p: Tensor, sigma: float, steps: int) -> Iterator[NoisyStep]:
    """Steps a rule for the vector p on full batches of zero gradients."""
    rng = np.random.default_rng(0)
    zeros = np.zeros((int(BATCH), p.numel()))
    for _ in range(steps):
        with torch.no_grad():
            p.zero_()  # otherwise small updates would be rounded away next to large earlier ones
        xi = rng.normal(size=p.numel())
        _, scale = frame(rule, [p], 1.0)
        release, mean = release_of(rule, [p], zeros, xi, sigma, 1.0)
        release.write_to(rule)
        rule.step()
        yield NoisyStep(scale, scale * sigma * xi / BATCH, mean, p.detach().numpy().copy())
