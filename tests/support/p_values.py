"""P-values of statistical tests, and the false-alarm rate below which a test fails."""

import math

import numpy as np
from scipy import stats

ALPHA = 1e-4


def two_sided(p_below: float) -> float:
    """Converts the probability of a smaller statistic to a two-sided p-value."""
    return 2 * min(p_below, 1 - p_below)


def correlation_p_value(a: np.ndarray, b: np.ndarray) -> float:
    """For independent standard normal values, the scaled sum of products is standard normal."""
    product = float(np.dot(a.ravel(), b.ravel())) / math.sqrt(a.size)
    return 2 * stats.norm.sf(abs(product))
