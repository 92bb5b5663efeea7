"""The third step of `make_private`: steps, noise multiplier and budget."""

from bisect import bisect_left

from adamas.accounting import Plan, calibrate
from adamas.accounting.budget import Budget
from adamas.accounting.events import Entries
from adamas.accounting.ledger import supports
from adamas.errors import UnsupportedError
from adamas.run.options import RunOptions
from adamas.run.validation import Validated
from adamas.sampling import Sampler


def calibrated(arguments: Validated) -> Plan:
    """Plans the run: calibrates the noise to `epsilon`, or cuts the steps to what `max_epsilon` pays for."""
    options, sampler = arguments.options, arguments.sampler
    if not supports(options.accountant, sampler.plan(1.0, 1), sampler.relation):
        raise UnsupportedError(
            f"accountant={options.accountant!r} has no bound for sampling={options.sampling!r}. Use "
            "accountant='pld'."
        )
    steps = options.steps
    if steps is None:
        assert options.epochs is not None
        steps = options.epochs * sampler.steps_per_epoch()
    z = options.noise_multiplier
    if z is None:
        z = _noise_multiplier(options, sampler, steps)
    if options.max_epsilon is not None:
        steps = _affordable_steps(sampler, z, steps, options.max_epsilon, options)
    return Plan(steps, z, _budget(options))


def _noise_multiplier(options: RunOptions, sampler: Sampler, steps: int) -> float:
    """Returns the least noise with which all steps together keep the budget."""
    assert options.epsilon is not None
    return calibrate.noise_multiplier_for(
        lambda z: sampler.plan(z, steps),
        before=spent_before(options),
        epsilon=options.epsilon,
        delta=options.delta,
        accountant=options.accountant,
        relation=sampler.relation,
    )


def spent_before(options: RunOptions) -> Entries:
    """Returns the events of the ledger `spent`."""
    return () if options.spent is None else options.spent.entries


def _budget(options: RunOptions) -> float | None:
    """Returns the epsilon that the run may spend; a run with `raw` is not private, and has no budget."""
    if options.raw:
        return None
    return options.max_epsilon if options.epsilon is None else options.epsilon


def _affordable_steps(
    sampler: Sampler, noise_multiplier: float, steps: int, epsilon: float, options: RunOptions
) -> int:
    """Returns the largest number of steps, up to `steps`, whose epsilon is at most the budget."""
    if noise_multiplier == 0:
        raise ValueError("Expected noise_multiplier > 0 with max_epsilon: without noise epsilon is infinite.")
    budget = Budget(epsilon, options.delta, options.accountant, sampler.relation)
    units = budget.most(
        sampler.event({0: [noise_multiplier]}), sampler.unit(steps - 1) + 1, others=spent_before(options)
    )
    if units == 0:
        raise ValueError(
            f"Expected max_epsilon={epsilon!r} to pay for one step at least; with noise_multiplier="
            f"{noise_multiplier!r} it does not. Raise one of them."
        )
    return bisect_left(range(steps), units, key=sampler.unit)
