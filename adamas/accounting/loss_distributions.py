"""The privacy loss distribution of a single event, rounded up to cells.

Gaussians, mixtures of them and `SampledTermsDpEvent` come from the connect-the-dots method on exact deltas,
other events from `dp_accounting` as they are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri_exp

from adamas.accounting.terms import SampledTermsDpEvent


@dataclass(frozen=True, eq=False)
class Losses:
    """The distribution of one privacy loss.

    Attributes:
        probabilities: `probabilities[i]` belongs to the loss `(lowest + i) * width`.
        lowest: The number of the first cell.
        infinite: The probability of an infinite loss.
    """

    probabilities: np.ndarray
    lowest: int
    infinite: float


def largest_loss(event: dp_accounting.DpEvent, discarded: float) -> float:
    """Estimates the largest loss of an event; 0 if it has few values."""
    inner = event.event if isinstance(event, dp_accounting.PoissonSampledDpEvent) else event
    if isinstance(inner, dp_event.TruncatedSubsampledGaussianDpEvent):
        multiplier = inner.noise_multiplier / 2
    elif isinstance(inner, dp_accounting.GaussianDpEvent):
        multiplier = inner.noise_multiplier
    elif isinstance(inner, dp_accounting.LaplaceDpEvent):
        return float(1 / inner.noise_multiplier)
    elif isinstance(inner, SampledTermsDpEvent):
        multiplier = inner.noise_multiplier / (2 * inner.terms)
    elif isinstance(inner, dp_event.MixtureOfGaussiansDpEvent):
        multiplier = inner.standard_deviation / max(map(abs, inner.sensitivities))
    else:
        return 0.0
    return float(0.5 / multiplier**2 + math.sqrt(-2 * discarded) / multiplier)


@lru_cache(maxsize=16)
def losses_of(
    event: dp_accounting.DpEvent, relation: NeighboringRelation, width: float, discarded: float
) -> tuple[Losses, ...]:
    """Returns the losses of an event for removing and for adding a record, or one for both.

    `discarded` is the logarithm of the probability that may be counted as an infinite loss.
    """
    rate, inner = 1.0, event
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        rate, inner = event.sampling_probability, event.event
    if isinstance(inner, dp_accounting.GaussianDpEvent):
        kinds = (
            [AdjacencyType.REPLACE]
            if relation == NeighboringRelation.REPLACE_ONE
            else [AdjacencyType.REMOVE, AdjacencyType.ADD][: 1 if rate == 1 else 2]
        )
        return tuple(
            _of_gaussian(
                GaussianPrivacyLoss(
                    inner.noise_multiplier,
                    log_mass_truncation_bound=discarded,
                    sampling_prob=rate,
                    adjacency_type=kind,
                ),
                width,
            )
            for kind in kinds
        )
    if isinstance(inner, SampledTermsDpEvent):
        return (_of_terms(inner, width, discarded),)
    if isinstance(inner, dp_event.MixtureOfGaussiansDpEvent) and min(inner.sensitivities) >= 0:
        return tuple(_of_mixture(inner, more, width, discarded) for more in (False, True))
    pld = _distribution(inner, rate, relation, width, discarded)
    pmfs = [pld._pmf_remove] if pld._symmetric else [pld._pmf_remove, pld._pmf_add]
    dense = [pmf.to_dense_pmf() for pmf in pmfs]
    return tuple(Losses(np.asarray(one._probs), one._lower_loss, float(one._infinity_mass)) for one in dense)


def _of_gaussian(mechanism: GaussianPrivacyLoss, width: float) -> Losses:
    bounds = mechanism.connect_dots_bounds()
    return _connected(
        lambda epsilons: _deltas(mechanism, epsilons), bounds.epsilon_lower, bounds.epsilon_upper, width
    )


def _connected(
    deltas_at: Callable[[np.ndarray], np.ndarray], lowest: float, highest: float, width: float
) -> Losses:
    """Discretises by connect-the-dots (Doroshenko et al., 2022, algorithm 1): delta is exact at each cell.

    Args:
        deltas_at: Computes the deltas at epsilons.
        lowest: Smaller losses are rounded up to this one.
        highest: Larger losses are counted as infinite.
        width: Width of a cell.
    """
    low, high = math.floor(lowest / width), math.ceil(highest / width)
    high = max(high, low + 1)
    deltas = np.minimum.accumulate(deltas_at(np.arange(low, high + 1) * width))
    falls = np.diff(deltas)
    probabilities = np.empty(len(deltas))
    probabilities[0] = 1 - deltas[0] + falls[0] / math.expm1(width)
    probabilities[1:-1] = (falls[1:] - falls[:-1] * math.exp(width)) / math.expm1(width)
    probabilities[-1] = falls[-1] / math.expm1(-width)
    return Losses(np.maximum(probabilities, 0.0), low, float(deltas[-1]))


def _of_terms(event: SampledTermsDpEvent, width: float, discarded: float) -> Losses:
    """Computes (2) of `adamas.accounting.terms`, the mean of the deltas of Gaussians, for both directions."""
    shifts, probabilities = event.shifts(), event.probabilities()

    def deltas_at(epsilons: np.ndarray) -> np.ndarray:
        deltas = -probabilities[0] * np.expm1(np.minimum(epsilons, 0.0))
        for mu, probability in zip(shifts[1:], probabilities[1:], strict=True):
            if probability > 0:
                tail = np.exp(epsilons + log_ndtr(-epsilons / mu - mu / 2))
                deltas += probability * np.maximum(ndtr(mu / 2 - epsilons / mu) - tail, 0.0)
        clipped: np.ndarray = deltas.clip(0.0, 1.0)
        return clipped

    likely = shifts[probabilities > math.exp(max(discarded, -700.0))]
    highest = likely[-1] ** 2 / 2 - likely[-1] * ndtri_exp(discarded)
    return _connected(deltas_at, -highest, highest, width)


def _of_mixture(
    event: dp_event.MixtureOfGaussiansDpEvent, more: bool, width: float, discarded: float
) -> Losses:
    r"""Computes the loss between a mixture of Gaussians at :math:`c_i \ge 0` and the one at 0.

    The likelihood ratio :math:`L(x) = \sum_i p_i e^{(c_i x - c_i^2/2)/\sigma^2}` rises with x, so a loss
    above epsilon is an outcome on one side of some x.

    Args:
        event: The mixture.
        more: Whether the mixture is the neighbour, and not the data.
        width: Width of a cell.
        discarded: Logarithm of the probability that may be counted as an infinite loss.
    """
    centers = np.asarray(event.sensitivities, dtype=float) / event.standard_deviation
    weights = np.asarray(event.sampling_probs, dtype=float)
    centers, weights = centers[weights > 0], weights[weights > 0]
    tail = -float(ndtri_exp(discarded))  # an outcome is farther from its center with that probability
    reached = _log_ratio(np.array([-tail, centers.max() + tail]), centers, weights)[0]

    def deltas_at(epsilons: np.ndarray) -> np.ndarray:
        x = _outcomes(-epsilons if more else epsilons, centers, weights)
        side = x if more else -x
        mixed = logsumexp(log_ndtr(side[:, None] + (-centers if more else centers)), b=weights, axis=1)
        alone = log_ndtr(side)
        above, below = (alone, mixed) if more else (mixed, alone)
        clipped: np.ndarray = (np.exp(above) - np.exp(np.minimum(epsilons + below, above))).clip(0.0, 1.0)
        return clipped

    lowest, highest = (-reached[1], -reached[0]) if more else (reached[0], reached[1])
    return _connected(deltas_at, lowest, highest, width)


def _log_ratio(x: np.ndarray, centers: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the logarithm of the likelihood ratio at outcomes in standard deviations, and its slope."""
    exponents = np.log(weights) + x[:, None] * centers - centers**2 / 2
    largest = exponents.max(1, keepdims=True)
    terms = np.exp(exponents - largest)
    total = terms.sum(1)
    return largest[:, 0] + np.log(total), (terms * centers).sum(1) / total


def _outcomes(logarithms: np.ndarray, centers: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Finds the outcome at each logarithm of the likelihood ratio; minus infinity where it is always larger.

    The logarithm is convex and rises, so Newton's method falls to the root from any point above it. By
    Jensen's inequality, such a point is where the mean of the exponents has the value.
    """
    mean, square = float(weights @ centers), float(weights @ centers**2)
    x = (logarithms + square / 2) / mean
    least = math.log(weights[centers == 0].sum()) if (centers == 0).any() else -math.inf
    exists = logarithms > least
    x[~exists] = -math.inf
    open_ = np.flatnonzero(exists)
    for _ in range(200):
        values, slopes = _log_ratio(x[open_], centers, weights)
        steps = (values - logarithms[open_]) / slopes
        x[open_] -= steps
        open_ = open_[np.abs(steps) > 1e-12 * (1 + np.abs(x[open_]))]
        if len(open_) == 0:
            break
    return x


def _deltas(mechanism: GaussianPrivacyLoss, epsilons: np.ndarray) -> np.ndarray:
    """Vectorizes `mechanism.get_delta_for_epsilon`.

    A loss above epsilon is an outcome below some x. With q the sampling rate and z the noise,

        one record less:  (1 - q) + q e^(-(2x + 1)/(2 z^2)) = e^epsilon
        one record more:  (1 - q) + q e^((2x - 1)/(2 z^2)) = e^-epsilon
    """
    rate, variance = mechanism.sampling_prob, mechanism.standard_deviation**2
    if mechanism.adjacency_type == AdjacencyType.REPLACE:
        deltas: np.ndarray = mechanism.get_delta_for_epsilon(epsilons)
        return deltas
    sign = 1 if mechanism.adjacency_type == AdjacencyType.REMOVE else -1
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        deltas = np.maximum(-np.expm1(epsilons), 0.0) if sign == 1 else np.zeros_like(epsilons)
        exponents = sign * epsilons if rate == 1 else np.log((rate + np.expm1(sign * epsilons)) / rate)
    # Outcomes with such a loss do not exist: too small after a removal, too large after an addition.
    exponents = np.where(np.isnan(exponents), -math.inf, exponents)
    # expm1 of hundreds overflows; the 1 is negligible there.
    exponents = np.where(sign * epsilons > 500, sign * epsilons - math.log(rate), exponents)
    finite = np.isfinite(exponents)
    cutoffs = sign * (-variance * exponents[finite] - 0.5)
    deltas[finite] = mechanism.mu_upper_cdf(cutoffs) - np.exp(
        epsilons[finite] + mechanism.mu_lower_log_cdf(cutoffs)
    )
    deltas.clip(0.0, 1.0, out=deltas)
    return deltas


def _distribution(
    event: dp_accounting.DpEvent,
    rate: float,
    relation: NeighboringRelation,
    width: float,
    discarded: float,
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Builds the distribution of an event other than a Gaussian with `dp_accounting`."""
    pld = privacy_loss_distribution
    cells = {"value_discretization_interval": width}
    if isinstance(event, dp_event.TruncatedSubsampledGaussianDpEvent):
        return pld.from_truncated_subsampled_gaussian_mechanism(
            event.dataset_size,
            event.sampling_probability,
            event.truncated_batch_size,
            event.noise_multiplier,
            log_mass_truncation_bound=discarded,
            neighboring_relation=relation,
            **cells,
        )
    if isinstance(event, dp_accounting.LaplaceDpEvent):
        return pld.from_laplace_mechanism(event.noise_multiplier, sampling_prob=rate, **cells)
    if isinstance(event, dp_event.DiscreteLaplaceDpEvent):
        return pld.from_discrete_laplace_mechanism(event.noise_parameter, event.sensitivity, **cells)
    if isinstance(event, dp_event.MixtureOfGaussiansDpEvent):  # with a negative sensitivity
        return pld.from_mixture_gaussian_mechanism(
            event.standard_deviation,
            event.sensitivities,
            event.sampling_probs,
            log_mass_truncation_bound=discarded,
            **cells,
        )
    if isinstance(event, dp_event.RandomizedResponseDpEvent):
        return pld.from_randomized_response(
            event.noise_parameter, event.num_buckets, neighboring_relation=relation, **cells
        )
    raise AssertionError(f"{event} has a bound, but no distribution.")
