"""Composes recorded events into an epsilon, by privacy loss distributions or Renyi DP.

Every answer is an upper bound, rounding errors included.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from scipy.special import log_ndtr, ndtr

from adamas import _validate
from adamas.accounting import privacy_loss
from adamas.accounting.events import Entries, joined, sampled_gaussian, single_events
from adamas.accounting.terms import SampledTermsDpEvent, by_way_of_none
from adamas.errors import UnsupportedError

# Width of the cells into which the privacy loss is rounded up. A coarse answer is an upper bound, too.
# Above LARGE the last digits are not worth ten times the work.
_FINE, _COARSE, LARGE = 1e-4, 1e-3, 20.0

# Bounds the error in the divergence of one release, relative and absolute, for RDP_ORDERS.
_RDP_ROUNDING = 1e-13

RDP_ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))
"""The orders of Opacus, with which the papers' values were computed."""


def composed_epsilon(
    entries: Iterable[tuple[dp_accounting.DpEvent, int]],
    delta: float,
    accountant: str = "pld",
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    *,
    coarse: bool | None = None,
) -> float:
    """Computes the epsilon at delta of events with their counts.

    Args:
        entries: Events with their counts.
        delta: The delta of the answer.
        accountant: A name in `ACCOUNTANTS`.
        relation: The neighbouring relation.
        coarse: For PLD: round the privacy loss up to 1e-3 (True) or to 1e-4 (False), both upper
            bounds. None takes 1e-3 only where epsilon is above 20. Where a loss has too many values for
            memory, it is rounded up further.

    Returns:
        An upper bound, rounding errors included. It is infinite for events without noise or with less than
        `_validate.LEAST_NOISE_MULTIPLIER` of it, and never less than any of the events costs alone.

    Raises:
        UnsupportedError: If the accountant has no bound for one of the events.
        ValueError: If delta is below `_validate.LEAST_DELTA`.
    """
    _validate.delta(delta=delta)
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    entries = [(joined(event), count) for event, count in entries]
    _require_support(accountant, relation, entries)
    counts = single_events(entries)
    if counts is None:
        return math.inf
    if not counts:
        return 0.0
    if accountant == "pld":
        answer = _by_pld(counts, delta, relation, coarse)
    else:
        answer = _by_rdp(counts, delta, relation)
    return _plausible(answer, counts, delta)


def _by_pld(
    counts: privacy_loss.Counts, delta: float, relation: NeighboringRelation, coarse: bool | None
) -> float:
    if all(isinstance(event, SampledTermsDpEvent) and event.without_terms() for event, _ in counts):
        return _by_pld_of_terms(counts, delta, relation, coarse)
    if coarse is not False:
        rough = privacy_loss.epsilon(counts, delta, relation, _COARSE)
        if coarse or rough > LARGE:
            return rough
    return privacy_loss.epsilon(counts, delta, relation, _FINE)


def _by_pld_of_terms(
    counts: privacy_loss.Counts, delta: float, relation: NeighboringRelation, coarse: bool | None
) -> float:
    """Computes the smaller one of the two bounds in `adamas.accounting.terms`."""
    halves = [(event.without_terms(), count) for event, count in counts]

    def half(share: float, width: float) -> float:
        return privacy_loss.epsilon(halves, share, NeighboringRelation.ADD_OR_REMOVE_ONE, width)

    direct = privacy_loss.epsilon(counts, delta, relation, _COARSE)
    around, share = by_way_of_none(lambda one: half(one, _COARSE), delta, limit=direct)
    if coarse or (coarse is None and min(direct, around) > LARGE):
        return min(direct, around)
    if around == math.inf:
        return privacy_loss.epsilon(counts, delta, relation, _FINE)
    return min(around, by_way_of_none(lambda one: half(one, _FINE), delta, start=share)[0])


def _by_rdp(counts: privacy_loss.Counts, delta: float, relation: NeighboringRelation) -> float:
    composed = sum(count * _divergences(event, relation) for event, count in counts)
    # Rounding may bring a divergence below its true value, and below 0, which would count as no loss at all.
    rounding = _RDP_ROUNDING * sum(count for _, count in counts)
    divergences = np.nan_to_num(composed, nan=math.inf, posinf=math.inf)
    divergences = np.maximum(divergences, 0.0) * (1 + _RDP_ROUNDING) + rounding
    with quiet_accountants():
        return float(compute_epsilon(RDP_ORDERS, divergences, delta)[0])


@lru_cache(maxsize=256)
def _divergences(event: dp_accounting.DpEvent, relation: NeighboringRelation) -> np.ndarray:
    """Computes the Renyi divergence of an event for each of `RDP_ORDERS`."""
    if isinstance(event, SampledTermsDpEvent):
        return event.divergences(RDP_ORDERS)
    return np.asarray(_composed(_rdp(relation), [(event, 1)])._rdp, dtype=float)


def _plausible(answer: float, counts: privacy_loss.Counts, delta: float) -> float:
    """Returns the answer; raises if one of its releases alone costs more.

    The delta of one sampled Gaussian release has a closed form (Balle and Wang, 2018, theorem 8, with theorem
    9 of Balle, Barthe and Gaboardi, 2018).
    """
    if math.isnan(answer) or answer < 0:
        raise ArithmeticError(f"Expected an epsilon, computed {answer!r}. Please report the settings.")
    for event, _ in counts:
        rate, z = sampled_gaussian(event)
        if z is None or rate == 0 or answer == math.inf:
            continue
        # Epsilon of the release without sampling: log(1 + (e^answer - 1)/rate).
        inner = answer + math.log(rate * math.exp(-answer) - math.expm1(-answer)) - math.log(rate)
        alone = rate * (ndtr(0.5 / z - inner * z) - math.exp(inner + log_ndtr(-0.5 / z - inner * z)))
        if alone > delta * (1 + 1e-6) + 1e-300:
            raise ArithmeticError(
                f"Computed epsilon={answer!r} at delta={delta!r}, which is less than {event} costs alone. "
                "Please report the settings."
            )
    return answer


def epsilon_curve(
    event: dp_accounting.DpEvent,
    steps: int,
    delta: float,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    *,
    points: int = 32,
) -> np.ndarray:
    """Bounds the epsilon after 1, 2, ..., `steps` times the same event, by PLD.

    It is computed at `points` places, denser at the start where it rises fast. Each value stands for the
    steps since the place before it: epsilon never falls with more steps, so the curve is nowhere below
    the true one. The last value is as fine as that of `composed_epsilon`; the others are rounded up by
    about 0.3%.
    """
    _validate.count(steps=steps, points=points)
    places = np.unique(np.ceil(np.linspace(0, 1, points + 1)[1:] ** 2 * steps).astype(int))
    values = [
        composed_epsilon(
            [(event, int(place))], delta, "pld", relation, coarse=True if place < steps else None
        )
        for place in places
    ]
    # The finer value at the end also bounds those before it.
    bounded = np.minimum.accumulate(values[::-1])[::-1]
    return np.repeat(bounded, np.diff(places, prepend=0))


@lru_cache(maxsize=64)
def privacy_profile(
    event: dp_accounting.DpEvent, delta: float, relation: NeighboringRelation, *, interval: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Computes epsilons with their deltas, the trade-off curve of an event, and its epsilon at delta.

    They are upper bounds, by PLD with cells of about width `interval`. The epsilons end where delta is
    1e-12.
    """
    if not _pld(relation).supports(joined(event)):  # an event of our own
        deltas = np.geomspace(0.9, 1e-12, 24)
        found = [composed_epsilon([(event, 1)], one, "pld", relation, coarse=True) for one in deltas]
        return np.asarray(found), deltas, composed_epsilon([(event, 1)], delta, "pld", relation, coarse=True)
    width = min(max(interval, _COARSE), 10 * _COARSE)
    composed = _composed(_pld(relation, width), [(joined(event), 1)])
    epsilons = np.linspace(0.0, composed.get_epsilon(1e-12), 128)
    return epsilons, np.asarray(composed.get_delta(epsilons.tolist())), float(composed.get_epsilon(delta))


def supports(accountant: str, event: dp_accounting.DpEvent, relation: NeighboringRelation) -> bool:
    """Tells whether an accountant has a bound for an event."""
    stack = [joined(event)]
    known = ACCOUNTANTS[accountant](relation)
    while stack:
        one = stack.pop()
        if isinstance(one, dp_accounting.SelfComposedDpEvent):
            stack.append(one.event)
        elif isinstance(one, dp_accounting.ComposedDpEvent):
            stack += one.events
        elif isinstance(one, SampledTermsDpEvent):
            if relation == NeighboringRelation.ADD_OR_REMOVE_ONE:
                return False  # the number of terms is fixed
        elif not known.supports(one) or (accountant == "rdp" and _is_ambiguous(one, relation)):
            return False
    return True


def _is_ambiguous(event: dp_accounting.DpEvent, relation: NeighboringRelation) -> bool:
    """Tells whether dp-accounting's accountants count an event differently.

    Under replacement, PLD takes the noise of a plain Gaussian as relative to what adding a record moves, and
    RDP as relative to what replacing one moves, which may be twice as much.
    """
    return relation == NeighboringRelation.REPLACE_ONE and isinstance(event, dp_accounting.GaussianDpEvent)


def _composed(accountant: PrivacyAccountant, entries: Entries) -> PrivacyAccountant:
    for event, count in entries:
        with quiet_accountants():
            accountant.compose(event, count)
    return accountant


def _require_support(accountant: str, relation: NeighboringRelation, entries: Entries) -> None:
    for event, _ in entries:
        if not supports(accountant, event, relation):
            raise UnsupportedError(
                f"accountant={accountant!r} has no bound for {event} under the relation {relation.name}. Use "
                "accountant='pld', or sampling='poisson'."
            )


@contextmanager
def quiet_accountants() -> Iterator[None]:
    """Silences warnings about RDP orders that are left out or rounded, which is safe."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _pld(relation: NeighboringRelation, interval: float = _FINE) -> PrivacyAccountant:
    return PLDAccountant(relation, value_discretization_interval=interval)


def _rdp(relation: NeighboringRelation) -> PrivacyAccountant:
    return RdpAccountant(RDP_ORDERS, relation)


ACCOUNTANTS: dict[str, Callable[[NeighboringRelation], PrivacyAccountant]] = {
    "pld": _pld,
    "rdp": _rdp,
}
"""Accountants by name: privacy loss distributions (tight), and Renyi DP with the papers' orders."""
