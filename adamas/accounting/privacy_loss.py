r"""Composes privacy loss distributions, with a bound on everything that is rounded.

A mechanism's privacy loss has the values :math:`l_i = i h` with probabilities :math:`p_i`, and is infinite
with probability :math:`p_\infty`; these are rounded up by the connect-the-dots method. If mechanism :math:`j`
is used :math:`n_j` times, the losses add up:

.. math:: \delta(\epsilon) = p_\infty + \sum_{l > \epsilon} \left(1 - e^{\epsilon - l}\right) p(l),
   \qquad p = \mathop{*}_j\, p_j^{*n_j}                                                         \qquad (1)

A Fourier transform computes the convolution with an error of about :math:`10^{-16} \sum_j n_j` in absolute
terms, which hides a small delta. So the distributions are tilted first, which makes the losses near epsilon
the likely ones, and tilted back afterwards:

.. math:: w_j(l) = p_j(l)\, e^{\lambda l - K_j}, \quad K = \sum_j n_j K_j,
   \qquad p(l) = e^{K - \lambda l}\, w(l)                                                         \qquad (2)

An error of :math:`w` of at most :math:`E`, over all cells together, is then an error of at most
:math:`e^{K - \lambda \epsilon} E` in delta. That is small compared with delta, and is added to it. `E` is
the rounding of the transforms, and the mass outside of the window on which they are computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from scipy import fft, optimize, signal

from adamas.accounting.loss_distributions import Losses, largest_loss, losses_of

Counts = Sequence[tuple[dp_accounting.DpEvent, int]]

_MOST_CELLS = 2**20  # more take seconds
_WIDEST = 100.0  # an epsilon of millions
_UNIT = 2.0**-53
# The relative error of a probability that dp_accounting computes: a few roundings in normal distribution
# functions that are themselves exact to some units.
_PROBABILITY_ERROR = 100 * _UNIT
_OUTSIDE = 1e-18  # tilted mass on either side of the window


def epsilon(counts: Counts, delta: float, relation: NeighboringRelation, width: float) -> float:
    """Computes an upper bound on the epsilon of mechanisms with their counts; infinity if there is none.

    Args:
        counts: Events that `dp_accounting`'s PLD accountant has a bound for, none of them composed of others.
        delta: The delta of the answer.
        relation: The neighbouring relation.
        width: Width of the cells into which losses are rounded up. Cells get wider where they would be too
            many.
    """
    total = sum(count for _, count in counts)
    # In steps, so that cached distributions are used again.
    discarded = 25.0 * min(-2, math.floor((math.log(delta) - math.log(total) - 10) / 25))
    reach = max(largest_loss(event, discarded) for event, _ in counts)
    width = _wider(width, 2 * reach / width)
    while width < _WIDEST:
        kinds = [losses_of(event, relation, width, discarded) for event, _ in counts]
        multiplicities = [count for _, count in counts]
        directions = max(len(kind) for kind in kinds)
        # A symmetric mechanism has one distribution for both directions.
        answers = [
            _epsilon([kind[min(d, len(kind) - 1)] for kind in kinds], multiplicities, delta, width)
            for d in range(directions)
        ]
        cells = max(cells for _, cells in answers)
        if cells <= _MOST_CELLS:
            return max(bound for bound, _ in answers)
        width = _wider(width, cells)
    return math.inf


def _wider(width: float, cells: float) -> float:
    return width * 2.0 ** max(0, math.ceil(math.log2(max(cells, 1) / _MOST_CELLS)))


def _epsilon(kinds: list[Losses], counts: list[int], delta: float, width: float) -> tuple[float, int]:
    """Computes epsilon in one direction, and the number of cells; infinity if they are too many."""
    total = sum(counts)
    infinite = -math.expm1(
        sum(n * math.log1p(-min(one.infinite, 1 - _UNIT)) for one, n in zip(kinds, counts, strict=True))
    )
    # Each probability may be too small by a relative error, and each loss too small by the same.
    left = delta * (1 - 2 * total * _PROBABILITY_ERROR) - infinite
    if left <= 0:
        return math.inf, 0
    values = [(np.arange(len(one.probabilities)) + one.lowest) * width for one in kinds]
    tilt = _best_tilt(kinds, values, counts, math.log(left), width)
    tilted = [_tilted(one, x, tilt, _OUTSIDE / total) for one, x in zip(kinds, values, strict=True)]
    constant = math.fsum(n * one.constant for one, n in zip(tilted, counts, strict=True))  # K of (2)
    low, high = _window(tilted, counts)
    size = fft.next_fast_len(max(high - low + 1, *(len(one.weights) for one in tilted), 2), real=True)
    if size > _MOST_CELLS:
        return math.inf, size
    weights, error = _convolved(tilted, counts, size)
    weights = np.maximum(np.roll(weights, -(low % size)), 0.0)
    error += 4 * _OUTSIDE + sum(n * one.error for one, n in zip(tilted, counts, strict=True))
    start = sum(n * one.lowest for one, n in zip(tilted, counts, strict=True)) + low
    # No finite loss is above the sum of the largest ones.
    most = sum(n * (one.lowest + len(one.probabilities) - 1) for one, n in zip(kinds, counts, strict=True))
    found = min(_smallest(weights, start, tilt, constant, error, math.log(left), width), most * width)
    return found * (1 + 4 * _UNIT) + total * _PROBABILITY_ERROR, size


@dataclass(frozen=True, eq=False)
class _Tilted:
    """A tilted distribution: its weights from cell `lowest` on, K of (2), and the rounding of all weights."""

    weights: np.ndarray
    lowest: int
    constant: float
    error: float


def _best_tilt(
    kinds: list[Losses], values: list[np.ndarray], counts: list[int], log_delta: float, width: float
) -> float:
    """Finds the tilt that minimises Chernoff's bound on epsilon. Any other would be correct, too."""
    # Blocks of cells, each at its mean, are enough to choose by.
    blocks = [_in_blocks(one.probabilities, x) for one, x in zip(kinds, values, strict=True)]

    def bound(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        exponents = (_log_sum(log + tilt * x) for log, x in blocks)
        return (sum(n * k for k, n in zip(exponents, counts, strict=True)) - log_delta) / tilt

    limits = (math.log(1e-4), math.log(10 / width))
    return math.exp(
        optimize.minimize_scalar(bound, bounds=limits, method="bounded", options={"xatol": 0.02}).x
    )


def _in_blocks(probabilities: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Adds up neighbouring probabilities: returns the logarithms of the sums, and the mean value of each."""
    starts = np.arange(0, len(values), max(1, len(values) // 2**14))
    sums = np.add.reduceat(probabilities, starts)
    means = np.add.reduceat(probabilities * values, starts)
    np.divide(means, sums, out=means, where=sums > 0)
    return _logarithm(sums), means


def _tilted(one: Losses, values: np.ndarray, tilt: float, dropped: float) -> _Tilted:
    """Tilts a distribution, and drops cells that together weigh at most `dropped` on each side."""
    exponents = _logarithm(one.probabilities) + tilt * values
    constant = _log_sum(exponents)
    weights = np.exp(exponents - constant)
    first = int(np.searchsorted(np.cumsum(weights), dropped))
    last = len(weights) - int(np.searchsorted(np.cumsum(weights[::-1]), dropped))
    # Rounding in the exponent is a relative error of the weight.
    magnitude = float(np.dot(weights, np.abs(tilt * values))) + abs(constant) + 10
    return _Tilted(weights[first:last], one.lowest + first, constant, 4 * _UNIT * magnitude)


def _window(tilted: list[_Tilted], counts: list[int]) -> tuple[int, int]:
    """Finds cells outside of which at most `_OUTSIDE` of the composed weight lies on each side (Chernoff)."""
    places = [np.arange(len(one.weights), dtype=float) for one in tilted]
    means = [float(np.dot(one.weights, k)) for one, k in zip(tilted, places, strict=True)]
    mean = math.fsum(n * m for m, n in zip(means, counts, strict=True))
    variance = math.fsum(
        n * float(np.dot(one.weights, (k - m) ** 2))
        for one, k, m, n in zip(tilted, places, means, counts, strict=True)
    )
    lowest, highest = 0, sum(n * (len(one.weights) - 1) for one, n in zip(tilted, counts, strict=True))
    if variance == 0:
        return lowest, highest
    logs = [_logarithm(one.weights) for one in tilted]
    for scale in (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0):
        for sign in (-1, 1):
            order = sign * scale / math.sqrt(variance)
            exponent = math.fsum(
                n * _log_sum(log + order * (k - m))
                for log, k, m, n in zip(logs, places, means, counts, strict=True)
            )
            reach = (exponent - math.log(_OUTSIDE)) / abs(order)
            if sign > 0:
                highest = min(highest, math.ceil(mean + reach) + 1)
            else:
                lowest = max(lowest, math.floor(mean - reach) - 1)
    return lowest, highest


def _convolved(tilted: list[_Tilted], counts: list[int], size: int) -> tuple[np.ndarray, float]:
    """Convolves all weights, modulo `size` cells, and bounds the total error.

    A value of a transform is a sum over all cells, each of them multiplied and added `log2(size)` times, so
    that its error is `rounding` times the sum of weights, which is 1. The n-th power has n times that. By the
    inequality of Cauchy and Schwarz and Parseval's equation, the errors of all cells add up to no more than
    the root of the sum of all squared errors of the transform.
    """
    rounding = 10 * _UNIT * math.log2(size)
    transforms = [fft.rfft(one.weights, size) for one in tilted]
    log_bound, factors = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    for transform, n in zip(transforms, counts, strict=True):
        magnitude = np.abs(transform)
        log_bound += n * np.log(magnitude + rounding)
        factors += n * (rounding + 8 * _UNIT * magnitude) / (magnitude + rounding)
    bound = np.exp(log_bound)
    # Most of the product is negligible: it is left out, and counted as error.
    kept = log_bound > math.log(_OUTSIDE / size)
    product = np.zeros(size // 2 + 1, dtype=complex)
    product[kept] = math.prod(
        (transform[kept] ** n for transform, n in zip(transforms, counts, strict=True)),
        start=np.ones(int(kept.sum()), dtype=complex),
    )
    errors = np.where(kept, bound * factors, bound)
    # The other half of the transform of real numbers mirrors this one.
    error = math.sqrt(2) * float(np.linalg.norm(errors)) + 2 * rounding * float(bound.sum())
    return fft.irfft(product, size), error


def _smallest(
    weights: np.ndarray,
    start: int,
    tilt: float,
    constant: float,
    error: float,
    log_delta: float,
    width: float,
) -> float:
    """Finds the least epsilon >= 0 whose delta by (1) and (2), errors included, is small enough."""
    # For each cell i as epsilon: sums over j >= i of w_j e^(-tilt (j - i) width), and with tilt + 1.
    sums, discounted = (
        signal.lfilter([1.0], [1.0, -math.exp(-rate * width)], weights[::-1])[::-1]
        for rate in (tilt, tilt + 1)
    )
    terms = min(len(weights), 1 / -math.expm1(-tilt * width))
    log_deltas = (
        constant
        - tilt * width * (start + np.arange(len(weights)))
        + np.log(np.maximum(sums - discounted, 0.0) + error + 4 * _UNIT * terms * (sums + discounted))
    )
    above = np.flatnonzero(log_deltas > log_delta)
    if len(above) == 0:
        return max(0.0, start * width)
    i = int(above[-1])
    if i + 1 == len(weights):
        return math.inf
    # Between two cells delta is linear in e^epsilon, and what is added for errors is below its chord.
    here, there = math.exp(log_deltas[i] - log_delta), math.exp(log_deltas[i + 1] - log_delta)
    share = (here - 1) / (here - there)
    return max(0.0, (start + i) * width + math.log1p(share * math.expm1(width)))


def _logarithm(probabilities: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logarithms: np.ndarray = np.log(probabilities)
    return logarithms


def _log_sum(exponents: np.ndarray) -> float:
    """Computes the logarithm of the sum of exponentials."""
    largest = float(exponents.max())
    return largest + math.log(float(np.exp(exponents - largest).sum()))
