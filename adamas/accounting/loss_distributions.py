"""The privacy loss distribution of a single event, rounded up to cells.

Gaussians come from the connect-the-dots method on `dp_accounting`'s functions, other events from
`dp_accounting` as they are.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss


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
            _connected(
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
    pld = _distribution(inner, rate, relation, width, discarded)
    pmfs = [pld._pmf_remove] if pld._symmetric else [pld._pmf_remove, pld._pmf_add]
    dense = [pmf.to_dense_pmf() for pmf in pmfs]
    return tuple(Losses(np.asarray(one._probs), one._lower_loss, float(one._infinity_mass)) for one in dense)


def _connected(mechanism: GaussianPrivacyLoss, width: float) -> Losses:
    """Discretises by connect-the-dots (Doroshenko et al., 2022, algorithm 1): delta is exact at each cell."""
    bounds = mechanism.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / width), math.ceil(bounds.epsilon_upper / width)
    high = max(high, low + 1)
    deltas = np.minimum.accumulate(_deltas(mechanism, np.arange(low, high + 1) * width))
    falls = np.diff(deltas)
    probabilities = np.empty(len(deltas))
    probabilities[0] = 1 - deltas[0] + falls[0] / math.expm1(width)
    probabilities[1:-1] = (falls[1:] - falls[:-1] * math.exp(width)) / math.expm1(width)
    probabilities[-1] = falls[-1] / math.expm1(-width)
    return Losses(np.maximum(probabilities, 0.0), low, float(deltas[-1]))


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
    if isinstance(event, dp_event.MixtureOfGaussiansDpEvent):
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
