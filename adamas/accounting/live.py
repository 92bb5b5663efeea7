"""Bounds the epsilon of a run at every step, for progress bars and logs."""

import math
from collections import Counter

import dp_accounting
from dp_accounting import NeighboringRelation

from adamas.accounting.composition import composed_epsilon
from adamas.accounting.events import Entries, counted, within

# How many epsilons are composed over a run. They are denser at the start, where epsilon rises fast.
_PLACES = 32


class EpsilonBound:
    """Bounds the epsilon of a growing list of events, mostly without composing.

    It composes the events up to a later step, and returns that answer until the run has passed the step:
    more events never cost less. The answer at the end of the plan is exact.

    Args:
        delta: The delta of the guarantee.
        accountant: A name in `ACCOUNTANTS`.
        relation: The neighbouring relation.

    Example:
        >>> event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
        >>> bound = EpsilonBound(1e-5, "pld", NeighboringRelation.ADD_OR_REMOVE_ONE)
        >>> [round(bound([(event, n)], event, 100 - n), 2) for n in (1, 10, 100)]
        [1.92, 3.02, 7.05]
    """

    def __init__(self, delta: float, accountant: str, relation: NeighboringRelation) -> None:
        self._delta, self._accountant, self._relation = delta, accountant, relation
        self._composed: Counter[str] = Counter()
        self._answer = 0.0

    def __call__(self, entries: Entries, usual: dp_accounting.DpEvent, ahead: int) -> float:
        """Returns an upper bound on the epsilon of the entries.

        Args:
            entries: All events so far.
            usual: The event that will follow.
            ahead: How many of these will follow.
        """
        now = counted(entries)
        if within(now, self._composed) and (ahead > 0 or now == self._composed):
            return self._answer
        done = now.get(repr(usual), 0)
        place = _next_place(done, done + ahead) if done and ahead > 0 else done
        later = [(event, -(-count * place // done) if done else count) for event, count in entries]
        coarse = True if place < done + ahead else None
        self._answer = composed_epsilon(later, self._delta, self._accountant, self._relation, coarse=coarse)
        self._composed = counted(later)
        return self._answer


def _next_place(done: int, planned: int) -> int:
    """Returns the number of events up to which the next answer holds."""
    number = math.floor(_PLACES * math.sqrt(done / planned)) + 1
    return max(done, min(math.ceil((number / _PLACES) ** 2 * planned), planned))
