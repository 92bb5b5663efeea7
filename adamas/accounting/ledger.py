"""What was released, as `dp_accounting` events; epsilon on demand.

Recording a step takes microseconds and composing takes a second, so a run records at every step and
composes when somebody asks.
"""

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, PrivacyAccountant
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from scipy.special import log_ndtr, ndtr

from adamas import _validate
from adamas.accounting import privacy_loss
from adamas.errors import UnsupportedError
from adamas.sampling import Sampler, joint_noise_multiplier

# Width of the cells into which the privacy loss is rounded up. A coarse answer is an upper bound as
# well; above LARGE the last digits are not worth ten times the work.
_FINE, _COARSE, LARGE = 1e-4, 1e-3, 20.0

# What the divergence of one release is off by at most, relatively and absolutely, for RDP_ORDERS.
_RDP_ROUNDING = 1e-13

_LEAST, _LARGEST = _validate.LEAST_NOISE_MULTIPLIER, _validate.LARGEST_NOISE_MULTIPLIER

RDP_ORDERS: tuple[float, ...] = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64))
"""The orders of Opacus, with which the papers' values were computed."""

_EVENTS: dict[str, type[dp_accounting.DpEvent]] = {
    cls.__name__: cls
    for cls in vars(dp_accounting.dp_event).values()
    if isinstance(cls, type) and issubclass(cls, dp_accounting.DpEvent)
}


class Ledger:
    """The events of everything that was released on one data set.

    Args:
        relation: The neighbouring relation under which all events hold.

    Example:
        >>> import dp_accounting
        >>> from adamas import Ledger
        >>> ledger = Ledger()
        >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
        >>> ledger.record(step, count=1000)
        >>> round(ledger.epsilon(delta=1e-5), 3)
        1.828
    """

    def __init__(self, relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE) -> None:
        self._relation = relation
        self._closed: list[tuple[dp_accounting.DpEvent, int]] = []
        # The unit on which releases may still follow, and the last unit of every sampler.
        self._open_unit: tuple[Sampler, int] | None = None
        self._open_releases: dict[int, list[float]] = {}
        self._last_units: dict[Sampler, int] = {}
        self._cache: dict[tuple[float, str], float] = {}

    @classmethod
    def of(
        cls, entries: Iterable[tuple[dp_accounting.DpEvent, int]], relation: NeighboringRelation
    ) -> "Ledger":
        """Returns a ledger of these events, with how many times each happened."""
        ledger = cls(relation)
        for event, count in entries:
            if count:
                ledger.record(event, count)
        return ledger

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbouring relation under which all events hold."""
        return self._relation

    @property
    def entries(self) -> list[tuple[dp_accounting.DpEvent, int]]:
        """Events in their order, each with how many times it happened in a row."""
        entries = list(self._closed)
        if self._open_unit is not None:
            _append(entries, self._open_event())
        return entries

    def record(self, event: dp_accounting.DpEvent, count: int = 1) -> None:
        """Adds an event that stands for itself."""
        _validate.count(count=count)
        if not isinstance(event, dp_accounting.DpEvent):
            raise TypeError(f"Expected event={event!r} to be a dp_accounting.DpEvent.")
        _append(self._closed, event, count)
        self._cache.clear()

    def record_release(self, sampler: Sampler, step: int, noise_multiplier: float) -> None:
        """Adds a Gaussian release of sensitivity 1 on the batch that a sampler drew for a step.

        Releases on one batch are one event of the sampler, and so are all batches of an epoch for a
        sampler whose batches do not overlap. A batch is finished when the next one has a release.
        """
        _validate.noise_multiplier(noise_multiplier=noise_multiplier)
        if sampler.relation != self.relation:
            raise ValueError(
                f"Expected a sampler for relation={self.relation.name}, got {sampler.relation.name}."
            )
        unit = sampler.unit(step)
        if self._open_unit != (sampler, unit):
            if unit <= self._last_units.get(sampler, -1):
                raise ValueError(
                    f"Expected a release on a later batch than step={step}, which is finished: its event "
                    "was recorded without this release."
                )
            self._close()
            self._open_unit = (sampler, unit)
            self._last_units[sampler] = unit
        self._open_releases.setdefault(step, []).append(noise_multiplier)
        self._cache.clear()

    def epsilon(self, delta: float, accountant: str = "pld") -> float:
        """The smallest epsilon that the accountant can show for everything recorded, at this delta."""
        key = (delta, accountant)
        if key not in self._cache:
            self._cache[key] = composed_epsilon(self.entries, delta, accountant, self.relation)
        return self._cache[key]

    def copy(self) -> "Ledger":
        """An independent ledger with the same records."""
        other = Ledger(self.relation)
        other._closed = list(self._closed)
        other._open_unit = self._open_unit
        other._open_releases = {step: list(zs) for step, zs in self._open_releases.items()}
        other._last_units = dict(self._last_units)
        return other

    def state_dict(self) -> dict[str, Any]:
        """The records as plain data that JSON can hold."""
        state: dict[str, Any] = {
            "relation": self.relation.name,
            "entries": [{"event": _encode(event), "count": count} for event, count in self._closed],
            "open": None,
        }
        if self._open_unit is not None:
            state["open"] = {
                "event": _encode(self._open_event()),
                "releases": [[step, list(zs)] for step, zs in self._open_releases.items()],
            }
        return state

    def load_state_dict(self, state: dict[str, Any], sampler: Sampler | None = None) -> None:
        """Replaces the records by saved ones.

        Args:
            state: What `state_dict` returned.
            sampler: The sampler of the run that continues, so that another release on its last batch
                joins the event of that batch. Without it the batch counts as finished, as it is for
                a ledger that is only read.
        """
        entries = [(_decode(entry["event"]), entry["count"]) for entry in state["entries"]]
        self._relation = NeighboringRelation[state["relation"]]
        self._closed = entries
        self._open_unit, self._open_releases, self._last_units = None, {}, {}
        self._cache.clear()
        if state["open"] is None:
            return
        if sampler is None:
            _append(self._closed, _decode(state["open"]["event"]))
            return
        for step, multipliers in state["open"]["releases"]:
            for z in multipliers:
                self.record_release(sampler, step, z)
        if _encode(self._open_event()) != _encode(_decode(state["open"]["event"])):
            raise ValueError("Expected the sampler with which the last releases were made, got another one.")

    def _open_event(self) -> dp_accounting.DpEvent:
        assert self._open_unit is not None
        return self._open_unit[0].event(self._open_releases)

    def _close(self) -> None:
        if self._open_unit is not None:
            _append(self._closed, self._open_event())
            self._open_unit, self._open_releases = None, {}


def entries_of(state: dict[str, Any]) -> list[tuple[dp_accounting.DpEvent, int]]:
    """Returns the events of a ledger's `state_dict()`."""
    ledger = Ledger()
    ledger.load_state_dict(state)
    return ledger.entries


def composed_epsilon(
    entries: Iterable[tuple[dp_accounting.DpEvent, int]],
    delta: float,
    accountant: str = "pld",
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    *,
    coarse: bool | None = None,
) -> float:
    """The epsilon at delta of events that happened so many times each.

    Args:
        entries: Events with their counts.
        delta: The delta at which epsilon is asked.
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
    entries = [(_joined(event), count) for event, count in entries]
    _require_support(ACCOUNTANTS[accountant](relation), entries)
    counts = _counts(entries)
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
    if coarse is not False:
        rough = privacy_loss.epsilon(counts, delta, relation, _COARSE)
        if coarse or rough > LARGE:
            return rough
    return privacy_loss.epsilon(counts, delta, relation, _FINE)


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
    """The Renyi divergence of an event, for each of `RDP_ORDERS`."""
    return np.asarray(_composed(_rdp(relation), [(event, 1)])._rdp, dtype=float)


def _plausible(answer: float, counts: privacy_loss.Counts, delta: float) -> float:
    """The answer, unless it is less than one release of those that it is about costs by itself.

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


def sampled_gaussian(event: dp_accounting.DpEvent) -> tuple[float, float | None]:
    """The sampling rate and noise multiplier of a Gaussian event; None if it is of another kind."""
    rate = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        rate, event = event.sampling_probability, event.event
    return rate, event.noise_multiplier if isinstance(event, dp_accounting.GaussianDpEvent) else None


def epsilon_curve(
    event: dp_accounting.DpEvent,
    steps: int,
    delta: float,
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    *,
    points: int = 32,
) -> np.ndarray:
    """An upper bound of the epsilon after 1, 2, ..., `steps` times the same event, by PLD.

    It is computed at `points` places, denser at the start where it rises fast, and each place's value
    stands for the steps since the one before: epsilon never falls with more steps, so the curve is
    nowhere below the true one. The last value is as fine as `composed_epsilon`'s, the others are
    rounded up by about 0.3%.
    """
    _validate.count(steps=steps, points=points)
    places = np.unique(np.ceil(np.linspace(0, 1, points + 1)[1:] ** 2 * steps).astype(int))
    values = [
        composed_epsilon(
            [(event, int(place))], delta, "pld", relation, coarse=True if place < steps else None
        )
        for place in places
    ]
    # The finer value of the end bounds what came before it, too.
    bounded = np.minimum.accumulate(values[::-1])[::-1]
    return np.repeat(bounded, np.diff(places, prepend=0))


@lru_cache(maxsize=64)
def privacy_profile(
    event: dp_accounting.DpEvent, delta: float, relation: NeighboringRelation, *, interval: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Epsilons with the delta of each, which are the trade-off curve of an event, and its epsilon at delta.

    By PLD with cells of about this width: an upper bound. The epsilons end where delta is 1e-12.
    """
    width = min(max(interval, _COARSE), 10 * _COARSE)
    composed = _composed(_pld(relation, width), [(_joined(event), 1)])
    epsilons = np.linspace(0.0, composed.get_epsilon(1e-12), 128)
    return epsilons, np.asarray(composed.get_delta(epsilons.tolist())), float(composed.get_epsilon(delta))


def supports(accountant: str, event: dp_accounting.DpEvent, relation: NeighboringRelation) -> bool:
    """Whether an accountant has a bound for an event."""
    return bool(ACCOUNTANTS[accountant](relation).supports(_joined(event)))


def _composed(
    accountant: PrivacyAccountant, entries: Sequence[tuple[dp_accounting.DpEvent, int]]
) -> PrivacyAccountant:
    _require_support(accountant, entries)
    for event, count in entries:
        with quiet_accountants():
            accountant.compose(event, count)
    return accountant


def _require_support(
    accountant: PrivacyAccountant, entries: Sequence[tuple[dp_accounting.DpEvent, int]]
) -> None:
    for event, _ in entries:
        if not accountant.supports(event):
            raise UnsupportedError(
                f"{type(accountant).__name__} has no bound for {event}. Use accountant='pld', or "
                "sampling='poisson'."
            )


@contextmanager
def quiet_accountants() -> Iterator[None]:
    """No warning for each RDP order that is left out or rounded, which is safe."""
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


def _append(
    entries: list[tuple[dp_accounting.DpEvent, int]], event: dp_accounting.DpEvent, count: int = 1
) -> None:
    """Appends an event, or counts it with the last one if they are equal."""
    if entries and entries[-1][0] == event:
        count += entries.pop()[1]
    entries.append((event, count))


def _joined(event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """Several Gaussians on one sampled batch as the one that they amount to, which PLD can bound."""
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        return dp_accounting.SelfComposedDpEvent(_joined(event.event), event.count)
    if isinstance(event, dp_accounting.ComposedDpEvent):
        return dp_accounting.ComposedDpEvent([_joined(inner) for inner in event.events])
    if isinstance(event, dp_accounting.PoissonSampledDpEvent) and isinstance(
        event.event, dp_accounting.ComposedDpEvent
    ):
        inner = event.event.events
        if all(isinstance(e, dp_accounting.GaussianDpEvent) for e in inner):
            z = joint_noise_multiplier([e.noise_multiplier for e in inner])
            return dp_accounting.PoissonSampledDpEvent(
                event.sampling_probability, dp_accounting.GaussianDpEvent(z)
            )
    return event


def _counts(entries: Sequence[tuple[dp_accounting.DpEvent, int]]) -> privacy_loss.Counts | None:
    """The single events of entries, each once, with how often it happened; None if one hides nothing.

    Gaussians without sampling are one Gaussian together. One with more noise than any other is counted as
    one with `_validate.LARGEST_NOISE_MULTIPLIER`, which costs more.
    """
    counts: dict[dp_accounting.DpEvent, int] = {}
    plain: dict[float, int] = {}
    stack = list(entries)
    while stack:
        event, count = stack.pop()
        if isinstance(event, dp_accounting.SelfComposedDpEvent):
            stack.append((event.event, event.count * count))
            continue
        if isinstance(event, dp_accounting.ComposedDpEvent):
            stack += [(inner, count) for inner in event.events]
            continue
        rate, z = sampled_gaussian(event)
        if isinstance(event, dp_accounting.NoOpDpEvent) or rate == 0 or count == 0:
            continue
        if isinstance(event, dp_accounting.NonPrivateDpEvent) or _noise(event) < _LEAST:
            return None
        if z is not None:
            z = min(z, _LARGEST)
            if rate == 1:
                plain[z] = plain.get(z, 0) + count
                continue
            event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
        if isinstance(event, dp_accounting.dp_event.MixtureOfGaussiansDpEvent):  # lists are no keys
            event = type(event)(
                event.standard_deviation, tuple(event.sensitivities), tuple(event.sampling_probs)
            )
        counts[event] = counts.get(event, 0) + count
    if plain:
        joint = math.fsum(n / z**2 for z, n in plain.items()) ** -0.5
        counts[dp_accounting.GaussianDpEvent(joint)] = 1
    return list(counts.items())


def _noise(event: dp_accounting.DpEvent) -> float:
    """The least Gaussian noise in an event, in units of the sensitivity; infinity if it has none."""
    inner = [event.event] if hasattr(event, "event") else getattr(event, "events", [])
    if inner:
        return min(map(_noise, inner))
    if isinstance(event, dp_accounting.dp_event.MixtureOfGaussiansDpEvent):
        largest = max(map(abs, event.sensitivities), default=0.0)
        return float(event.standard_deviation / largest) if largest else math.inf
    gaussians = (dp_accounting.GaussianDpEvent, dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent)
    return float(event.noise_multiplier) if isinstance(event, gaussians) else math.inf


def _encode(value: Any) -> Any:
    if isinstance(value, dp_accounting.DpEvent):
        return {"kind": type(value).__name__} | {
            name: _encode(getattr(value, name)) for name in inspect.signature(type(value)).parameters
        }
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("kind") not in _EVENTS:
            raise ValueError(f"Expected a known event, found kind={value.get('kind')!r}.")
        fields = {name: _decode(item) for name, item in value.items() if name != "kind"}
        return _EVENTS[value["kind"]](**fields)
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return value
