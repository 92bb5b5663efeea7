"""Make one release of gradients in hand, without a run."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from adamas import Geometry, PrivateGradient
from adamas.noise import GaussianNoise
from adamas.privatize import privatize


def parameter(*shape: int, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype))


def rows(*values: list[float]) -> Tensor:
    """Gradients in float64, one row for each example."""
    return torch.tensor(values, dtype=torch.float64)


def released(
    geometry: Geometry,
    *,
    engines: Iterable[tuple[Any, int]] = (),
    noise_multiplier: float = 1.3,
    batch_size: float = 8.0,
    noise: Any = None,
    seed: int = 0,
    charge: Callable[..., tuple[int, ...]] = lambda _: (),
    **options: Any,
) -> PrivateGradient:
    """Releases the sum over `engines`, with reproducible noise of `seed` unless `noise` is given."""
    return privatize(
        engines,
        geometry,
        noise_multiplier=noise_multiplier,
        expected_batch_size=batch_size,
        noise=noise or GaussianNoise(seed),
        charge=charge,
        **options,
    )
