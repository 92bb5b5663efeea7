"""Measures a release by post-processing: its norm, the norm of its noise, and signal to noise."""

import math

import torch
from torch import Tensor

from adamas.privatize import PrivateGradient


def release_metrics(release: PrivateGradient) -> dict[str, float]:
    """Returns the norm of a release, the expected norm of its noise, and an estimate of signal to noise."""
    norms = torch._foreach_norm([mean.detach() for mean in release.mean.values()])
    square = math.fsum(float(norm) ** 2 for norm in norms)
    noise = math.fsum(
        float(variance.sum(dtype=torch.float64)) * (mean.numel() / variance.numel())
        if isinstance(variance, Tensor)
        else variance * mean.numel()
        for mean, variance in ((mean, release.noise_variance[p]) for p, mean in release.mean.items())
    )
    signal = math.sqrt(max(square - noise, 0.0))
    return {
        "release_norm": math.sqrt(square),
        "noise_norm": math.sqrt(noise),
        "signal_to_noise": signal / math.sqrt(noise) if noise > 0 else math.inf,
    }
