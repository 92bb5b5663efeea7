"""A model, data and comparisons for tests of engines.

Everything is float64, and the reference is plain autograd one example at a time (`one_by_one.py`).
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from adamas.engines import ENGINES, Engine
from tests.support.one_by_one import Gradients, close, summed


def every_engine(test: Callable[..., None]) -> Callable[..., None]:
    """Parametrizes a test over the names of all engines."""
    return pytest.mark.parametrize("engine", ENGINES)(test)


def mlp(seed: int = 0, width: int = 4) -> nn.Module:
    """Makes a network for three features, with weights that depend on `seed` only."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)).double()


def data(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Draws `n` examples of three features, and a positive factor for the loss of each."""
    torch.manual_seed(seed)
    return torch.randn(n, 3, dtype=torch.float64), 0.5 + torch.rand(n, dtype=torch.float64)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Asserts that two tensors agree in dtype, shape and values."""
    assert actual.dtype == expected.dtype
    close(actual, expected)


def assert_sums(built: Engine, weights: Tensor, gradients: Gradients) -> None:
    """Asserts that an engine's weighted sum equals the weighted sum of `gradients`."""
    sums = built.weighted_sum(weights.double())
    expected = summed(gradients, weights)
    assert set(sums) == set(expected)
    for p, total in expected.items():
        assert_close(sums[p], total)


def norms_of_single_examples(built: Engine, n: int) -> Tensor:
    """Returns the norm of each example's gradient, from a weighted sum of that example alone."""
    result = []
    for i in range(n):
        sums = built.weighted_sum(torch.eye(n, dtype=torch.float64)[i])
        result.append(sum(float(total.square().sum()) for total in sums.values()) ** 0.5)
    return torch.tensor(result, dtype=torch.float64)
