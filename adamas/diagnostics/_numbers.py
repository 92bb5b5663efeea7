"""Sums, ratios and quantiles of tensors as plain numbers that JSON can hold: None if not finite."""

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from adamas.geometry import Value

QUANTILES = (0, 5, 25, 50, 75, 95, 100)
"""Levels of the quantiles of a distribution, in percent."""


def quantiles(parts: list[np.ndarray]) -> dict[str, float | None] | None:
    """Returns the quantiles of all parts together; None if there are no values."""
    values = np.concatenate(parts) if parts else np.empty(0)
    if not len(values):
        return None
    # Interpolation next to an infinite value would give NaN.
    method: Literal["linear", "lower"] = "linear" if np.isfinite(values).all() else "lower"
    answer = np.quantile(values, np.array(QUANTILES) / 100, method=method)
    return {f"{level}%": finite(float(value)) for level, value in zip(QUANTILES, answer, strict=True)}


def mean(values: Iterable[tuple[Value | None, int]]) -> float | None:
    """Returns the mean over the coordinates of (value, number of coordinates) pairs that are known."""
    known = [(total(value, n), n) for value, n in values if value is not None]
    return ratio(math.fsum(one for one, _ in known), sum(n for _, n in known))


def total(value: Value, n: int) -> float:
    """Returns the sum of a tensor of n values, or n times a single value."""
    if isinstance(value, Tensor) and value.dim():
        return float(torch.sum(value, dtype=torch.float64))
    return float(value) * n


def sum_of_squares(values: Tensor) -> float:
    """Returns the sum of squares, in float64."""
    return float(torch.sum(values.to(torch.float64).square()))


def flat(values: Tensor) -> np.ndarray:
    """Returns the values as a flat NumPy array of float32 or float64."""
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    array: np.ndarray = values.detach().reshape(-1).cpu().numpy()
    return array


def ratio(numerator: float, denominator: float) -> float | None:
    """Returns the quotient; None if the denominator is 0 or the quotient is not finite."""
    return finite(numerator / denominator) if denominator else None


def finite(value: float) -> float | None:
    """Returns the value if it is finite, otherwise None."""
    return value if math.isfinite(value) else None
