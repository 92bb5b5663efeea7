"""What one run has released, before and after a crash, and what it may still release."""

from collections import Counter
from collections.abc import Sequence

import dp_accounting

from adamas import calibrate
from adamas._words import bound
from adamas.budget import Budget, Entries
from adamas.ledger import Ledger
from adamas.sampling import Sampler

Release = tuple[int, float]
"""The step and the noise multiplier of a release."""


class Releases:
    """The releases of a run, in its ledger and beyond.

    A run that continues one that died may make some of its releases again, to the last bit. They are counted
    once: they wait in `to_repeat`, and enter the ledger when their step comes, repeated or not.

    Attributes:
        ledger: The releases, as events.
        to_repeat: Those of a run that died, at steps that are still to come.

    Args:
        sampler: How the batches of the releases are drawn.
        delta: The delta of the guarantee.
        accountant: A name in `ACCOUNTANTS`.

    Example:
        >>> from adamas.sampling import Poisson
        >>> releases = Releases(Poisson(100, 10), delta=1e-5, accountant="rdp")
        >>> releases.record(0, [1.0])
        >>> releases.record(1, [1.0])
        >>> [count for _, count in releases.ledger.entries]
        [2]
    """

    def __init__(self, sampler: Sampler, delta: float, accountant: str) -> None:
        self.sampler, self.delta, self.accountant = sampler, delta, accountant
        self.ledger = Ledger(sampler.relation)
        self.to_repeat: list[Release] = []
        self._of_step: list[Release] = []  # in the ledger for the current step, and not repeated yet
        self._reserved: dict[str, int] = {}  # in the data set's ledger: how many of each event
        self._limit: Budget | None = None

    def complete(self) -> Ledger:
        """The ledger with what a run that died released and this one has not repeated yet."""
        if not self.to_repeat:
            return self.ledger
        ledger = self.ledger.copy()
        for step, z in self.to_repeat:
            ledger.record_release(self.sampler, step, z)
        return ledger

    def record(self, step: int, multipliers: Sequence[float]) -> None:
        """Records the releases of a step."""
        self._of_step = self._record_in(self.ledger, step, multipliers)
        self.to_repeat = [release for release in self.to_repeat if release[0] > step]

    def after(self, step: int, multipliers: Sequence[float]) -> Entries:
        """The events that there would be after these releases."""
        planned = self.ledger.copy()
        self._record_in(planned, step, multipliers)
        return planned.entries

    def recover(self, parts: Sequence[Sequence[Release]], *, repeatable: bool) -> None:
        """Takes over the releases of processes that died.

        Args:
            parts: Those of each process.
            repeatable: Whether they will be made again, to the last bit.
        """
        if repeatable:
            made = Counter(self.to_repeat)
            for part in parts:
                made |= Counter(part)
            self.to_repeat = sorted(made.elements())
            return
        for part in parts:
            units: dict[int, dict[int, list[float]]] = {}
            for step, z in part:
                units.setdefault(self.sampler.unit(step), {}).setdefault(step, []).append(z)
            for releases in units.values():
                self.ledger.record(self.sampler.event(releases))

    def check_budget(
        self, budget: float, step: int, noise_multiplier: float, *, done: int, steps: int
    ) -> None:
        """Raises `BudgetError` if one more release would exceed a budget that it was not calibrated for.

        Args:
            budget: The epsilon that may be spent.
            step: The step of the release.
            noise_multiplier: Its multiplier.
            done: Steps of the run whose release was made.
            steps: All steps of the run.
        """
        entries = self.ledger.entries
        usual = self.sampler.event({0: [noise_multiplier]})
        units = self.sampler.unit(done - 1) + 1 if done else 0
        own = all(event == usual for event, _ in entries) and sum(count for _, count in entries) <= units
        if own and step >= done and not self.to_repeat:
            return
        if self._limit is None or self._limit.epsilon != budget:
            self._limit = Budget(budget, self.delta, self.accountant, self.ledger.relation)
        self._limit.require(self.after(step, [noise_multiplier]), usual, ahead=steps - step - 1)

    def to_reserve(self, step: int, multipliers: Sequence[float], steps: int) -> Entries:
        """What the data set's ledger must have before these releases; nothing if it has them.

        If something is missing, then everything until the last of `steps` steps is asked for.
        """
        entries = self.after(step, multipliers)
        if all(count <= self._reserved.get(event, 0) for event, count in _counted(entries).items()):
            return []
        left = self.sampler.unit(steps - 1) - self.sampler.unit(step)
        usual = self.sampler.event({0: [multipliers[0]]})
        return [*entries, (usual, left)] if left > 0 else entries

    def reserved(self, entries: Entries) -> None:
        """Takes note of what the data set's ledger has for this run."""
        self._reserved = _counted(entries)

    @property
    def has_reserved(self) -> bool:
        """Whether there is something to give back."""
        return bool(self._reserved)

    def noise_multiplier_for(self, steps: int, epsilon: float) -> float:
        """The least noise with which so many more steps keep a budget for everything together."""
        ledger = self.complete()
        spent = ledger.epsilon(self.delta, self.accountant)
        if spent >= epsilon:
            raise ValueError(f"Expected epsilon={epsilon!r} above what was spent, {bound(spent)}.")
        before = [dp_accounting.SelfComposedDpEvent(event, count) for event, count in ledger.entries]
        return calibrate.noise_multiplier_for(
            lambda z: dp_accounting.ComposedDpEvent([*before, self.sampler.plan(z, steps)]),
            epsilon=epsilon,
            delta=self.delta,
            accountant=self.accountant,
            relation=self.ledger.relation,
        )

    def _record_in(self, ledger: Ledger, step: int, multipliers: Sequence[float]) -> list[Release]:
        """Records releases, and returns which of the step's are in the ledger and may still be repeated."""
        due = [release for release in self.to_repeat if release[0] <= step]
        for earlier, z in due:
            ledger.record_release(self.sampler, earlier, z)
        recorded = [release for release in [*self._of_step, *due] if release[0] == step]
        for z in multipliers:
            if (step, z) in recorded:
                recorded.remove((step, z))
            else:
                ledger.record_release(self.sampler, step, z)
        return recorded


def _counted(entries: Entries) -> dict[str, int]:
    """How many there are of each event."""
    counts: dict[str, int] = {}
    for event, count in entries:
        counts[repr(event)] = counts.get(repr(event), 0) + count
    return counts
