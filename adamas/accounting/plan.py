"""Plans what a run may release: steps, noise and budget, counted in accounting units."""

from dataclasses import dataclass, replace

import dp_accounting

from adamas import _validate
from adamas._words import rounded_up
from adamas.accounting import calibrate
from adamas.accounting.ledger import Ledger
from adamas.sampling import Sampler


@dataclass(frozen=True)
class Plan:
    """Limits what a run may release. `Spending.extend` makes a new plan.

    An accounting unit is a set of steps that the sampler accounts for as one event: one batch, or an epoch of
    batches that do not overlap.

    Attributes:
        steps: Steps of the whole run.
        noise_multiplier: The multiplier of the releases to come.
        budget: The largest epsilon that may be spent; None for no limit.
    """

    steps: int
    noise_multiplier: float
    budget: float | None = None

    def event(self, sampler: Sampler) -> dp_accounting.DpEvent:
        """Returns the event of one planned unit."""
        return sampler.event({0: [self.noise_multiplier]})

    def units_after(self, step: int, sampler: Sampler) -> int:
        """Returns how many units are planned after that of a step; -1 stands for before the first step."""
        return units(self.steps, sampler) - (units(step + 1, sampler) if step >= 0 else 0)

    def shortened(self, step: int, granted: int, wanted: int, sampler: Sampler) -> "Plan":
        """Returns the plan with only the granted ones of the units that were wanted after a step."""
        if granted >= wanted:
            return self
        last = units(step + 1, sampler) + granted if step >= 0 else granted
        steps = sum(sampler.unit(i) < last for i in range(self.steps))
        return replace(self, steps=max(steps, step + 1))


def units(steps: int, sampler: Sampler) -> int:
    """Returns how many accounting units a number of steps makes."""
    return sampler.unit(steps - 1) + 1


def noise_after(
    ledger: Ledger, sampler: Sampler, steps: int, epsilon: float, delta: float, accountant: str
) -> float:
    """Returns the least noise multiplier with which more steps keep a budget.

    Args:
        ledger: What was released before; the budget covers it, too.
        sampler: How the batches of the new steps are drawn.
        steps: How many more steps.
        epsilon: The budget for everything together.
        delta: The delta of the budget.
        accountant: A name in `ACCOUNTANTS`.
    """
    _validate.positive(epsilon=epsilon)
    spent = ledger.epsilon(delta, accountant)
    if spent >= epsilon:
        raise ValueError(f"Expected epsilon={epsilon!r} above what was spent, {rounded_up(spent)}.")
    return calibrate.noise_multiplier_for(
        lambda z: sampler.plan(z, steps),
        before=ledger.entries,
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        relation=ledger.relation,
    )
