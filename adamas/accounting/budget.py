"""Tells what a budget still pays for, without composing at every step."""

import dp_accounting
from dp_accounting import NeighboringRelation

from adamas import _validate
from adamas._words import limit
from adamas.accounting.composition import LARGE, composed_epsilon
from adamas.accounting.events import Entries
from adamas.errors import BudgetError


class Budget:
    """Limits what all releases on some data together may cost: (epsilon, delta).

    Composing takes a second, and a run asks before every step. It nearly always asks about one more of the
    same event, so the largest affordable count is searched for once and remembered.

    Args:
        epsilon: The epsilon that may be spent.
        delta: The delta of the budget.
        accountant: A name in `ACCOUNTANTS`.
        relation: The neighbouring relation.

    Example:
        >>> event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
        >>> budget = Budget(3.0, 1e-5, "rdp")
        >>> [budget.covers([(event, n)], event) for n in (1, 5, 500)]
        [True, True, False]
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        accountant: str = "pld",
        relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
    ) -> None:
        _validate.positive(epsilon=epsilon)
        _validate.delta(delta=delta)
        self.epsilon, self.delta = epsilon, delta
        self.accountant, self.relation = accountant, relation
        # By the usual event and the others: how many are affordable, and whether one more is too much.
        self._known: dict[str, tuple[int, bool]] = {}

    def covers(self, entries: Entries, usual: dp_accounting.DpEvent, ahead: int = 0) -> bool:
        """Tells whether the budget pays for these events.

        Args:
            entries: Everything that was and will be released, with counts.
            usual: The event of which more will follow.
            ahead: How many more will follow. If the budget pays for these, too, one search finds that out.
        """
        others = [(event, count) for event, count in entries if event != usual]
        n = sum(count for event, count in entries if event == usual)
        key = repr((usual, others))
        most, complete = self._known.get(key, (-1, False))
        if n > most and not complete:
            most, complete = self._search(others, usual, n, n + ahead)
            self._known[key] = (most, complete)
        return n <= most

    def most(self, usual: dp_accounting.DpEvent, wanted: int, others: Entries = ()) -> int:
        """Returns how many times an event is affordable besides others, up to a wanted number."""
        known = [(event, count) for event, count in others if event != usual]
        already = sum(count for event, count in others if event == usual)
        return max(0, self._search(known, usual, already + 1, already + wanted)[0] - already)

    def require(self, entries: Entries, usual: dp_accounting.DpEvent, ahead: int = 0) -> None:
        """Raises `BudgetError` unless the budget pays for these events."""
        if not self.covers(entries, usual, ahead):
            raise BudgetError(
                f"This release would exceed epsilon={limit(self.epsilon)} at delta={self.delta:g}, so it "
                "is not made. Continue with an explicit new budget (run.extend), or stop here."
            )

    def _search(self, others: Entries, usual: dp_accounting.DpEvent, low: int, high: int) -> tuple[int, bool]:
        """Finds the largest affordable count up to `high`, or `low` - 1, and whether one more is too much."""

        def affordable(count: int) -> bool:
            return self._affords([*others, (usual, count)] if count else others)

        if affordable(high):
            return high, False
        if low == high or not affordable(low):
            return low - 1, True
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if affordable(middle) else (low, middle)
        return low, True

    def _affords(self, entries: Entries) -> bool:
        def cost(coarse: bool) -> float:
            return composed_epsilon(entries, self.delta, self.accountant, self.relation, coarse=coarse)

        # A coarse answer is an upper bound, and ten times as fast.
        rough = cost(coarse=True)
        return rough <= self.epsilon or (
            self.accountant == "pld" and rough <= LARGE and cost(coarse=False) <= self.epsilon
        )
