"""Records releases as `dp_accounting` events, and composes epsilon on demand.

Recording a step takes microseconds and composing takes a second, so a run records at every step and
composes only when asked.
"""

from collections.abc import Iterable
from typing import Any

import dp_accounting
from dp_accounting import NeighboringRelation

from adamas import _validate
from adamas.accounting.composition import (
    ACCOUNTANTS,
    RDP_ORDERS,
    composed_epsilon,
    epsilon_curve,
    privacy_profile,
    quiet_accountants,
    supports,
)
from adamas.accounting.events import append, decode, encode
from adamas.sampling import Sampler

__all__ = [
    "ACCOUNTANTS",
    "RDP_ORDERS",
    "Ledger",
    "RunLedger",
    "composed_epsilon",
    "entries_of",
    "epsilon_curve",
    "privacy_profile",
    "quiet_accountants",
    "supports",
]


class Ledger:
    """Records the events of everything that was released on one data set.

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
        """Returns a ledger of events with their counts."""
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
        """Events in order, each with how many times in a row it happened."""
        entries = list(self._closed)
        if self._open_unit is not None:
            append(entries, self._open_event())
        return entries

    def record(self, event: dp_accounting.DpEvent, count: int = 1) -> None:
        """Adds an event with its count."""
        _validate.count(count=count)
        if not isinstance(event, dp_accounting.DpEvent):
            raise TypeError(f"Expected event={event!r} to be a dp_accounting.DpEvent.")
        append(self._closed, event, count)
        self._cache.clear()

    def record_release(self, sampler: Sampler, step: int, noise_multiplier: float) -> None:
        """Adds a Gaussian release of sensitivity 1 on the batch that a sampler drew for a step.

        All releases on one batch make one event of the sampler; for a sampler whose batches do not overlap,
        all batches of an epoch do. A batch is finished when the next one has a release.
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
        """Returns the smallest epsilon at delta that the accountant can show for everything recorded."""
        key = (delta, accountant)
        if key not in self._cache:
            self._cache[key] = composed_epsilon(self.entries, delta, accountant, self.relation)
        return self._cache[key]

    def copy(self) -> "Ledger":
        """Returns an independent ledger with the same records."""
        other = Ledger(self.relation)
        other._closed = list(self._closed)
        other._open_unit = self._open_unit
        other._open_releases = {step: list(zs) for step, zs in self._open_releases.items()}
        other._last_units = dict(self._last_units)
        return other

    def state_dict(self) -> dict[str, Any]:
        """Returns the records as plain data that JSON can hold."""
        state: dict[str, Any] = {
            "relation": self.relation.name,
            "entries": [{"event": encode(event), "count": count} for event, count in self._closed],
            "open": None,
        }
        if self._open_unit is not None:
            state["open"] = {
                "event": encode(self._open_event()),
                "releases": [[step, list(zs)] for step, zs in self._open_releases.items()],
            }
        return state

    def load_state_dict(self, state: dict[str, Any], sampler: Sampler | None = None) -> None:
        """Replaces the records with saved ones.

        Args:
            state: What `state_dict` returned.
            sampler: The sampler of the run that continues: another release on its last batch then joins
                the event of that batch. Without it the batch counts as finished, which suits a ledger
                that is only read.
        """
        entries = [(decode(entry["event"]), entry["count"]) for entry in state["entries"]]
        self._relation = NeighboringRelation[state["relation"]]
        self._closed = entries
        self._open_unit, self._open_releases, self._last_units = None, {}, {}
        self._cache.clear()
        if state["open"] is None:
            return
        if sampler is None:
            append(self._closed, decode(state["open"]["event"]))
            return
        for step, multipliers in state["open"]["releases"]:
            for z in multipliers:
                self.record_release(sampler, step, z)
        if encode(self._open_event()) != encode(decode(state["open"]["event"])):
            raise ValueError("Expected the sampler with which the last releases were made, got another one.")

    def _open_event(self) -> dp_accounting.DpEvent:
        assert self._open_unit is not None
        return self._open_unit[0].event(self._open_releases)

    def _close(self) -> None:
        if self._open_unit is not None:
            append(self._closed, self._open_event())
            self._open_unit, self._open_releases = None, {}


class RunLedger(Ledger):
    """The ledger of a run, which forgets nothing."""

    def load_state_dict(self, state: dict[str, Any], sampler: Sampler | None = None) -> None:
        """Loads saved records into an empty ledger; otherwise raises."""
        if self.entries:
            raise RuntimeError(
                "Expected the ledger of a run that has released nothing: saved records would replace "
                "its own. Read them into a new adamas.Ledger, or continue a run by adamas.load."
            )
        super().load_state_dict(state, sampler)


def entries_of(state: dict[str, Any]) -> list[tuple[dp_accounting.DpEvent, int]]:
    """Returns the events of a ledger's `state_dict()`."""
    ledger = Ledger()
    ledger.load_state_dict(state)
    return ledger.entries
