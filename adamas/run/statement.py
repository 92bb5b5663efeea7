"""The guarantee of a run in words, for reports."""

from dp_accounting import NeighboringRelation

from adamas._words import rounded_up
from adamas.accounting import Spending
from adamas.accounting.plan import units
from adamas.noise import Noise

NOT_PRIVATE = "The run is NOT PRIVATE, its epsilon is infinite: "
RAW_REASON = (
    "raw=True keeps moments of the gradients before the noise, so each step is recorded as a release without "
    "noise, too."
)

SEED_WARNING = (
    "The run had a given seed: whoever knows it can remove the noise, so keep it as secret as the data, and "
    "use it for no other run on them."
)

_RELATIONS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "adding or removing one record",
    NeighboringRelation.REPLACE_ONE: "replacing one record",
    NeighboringRelation.REPLACE_SPECIAL: "replacing one record by one without influence",
}


def privacy_statement(spending: Spending, noise: Noise, *, epsilon: float, raw: bool) -> str:
    """States what a run guarantees so far.

    Args:
        spending: What the run has released, and how it samples.
        noise: The noise of its releases.
        epsilon: The epsilon spent so far.
        raw: Whether the run keeps moments without noise.
    """
    z = spending.plan.noise_multiplier
    if raw or z == 0:
        return NOT_PRIVATE + (RAW_REASON if raw else "its noise multiplier is 0.")
    sampler = spending.sampler
    more = sum(count for _, count in spending.complete().entries) - units(spending.steps_done, sampler)
    others = f"Epsilon also counts releases from before the run or from a process that died: {more}. "
    words = (
        f"The {spending.steps_done} steps so far are ({rounded_up(epsilon)}, {spending.delta:g})-"
        f"differentially private under {sampler.protects or _RELATIONS[spending.ledger.relation]}, with "
        f"{type(sampler).__name__} sampling of {sampler.batch_size} of {sampler.dataset_size} "
        f"{'records' if sampler.protects is None else 'terms'} on average, noise multiplier {z:g} "
        f"and accountant {spending.accountant}. {others if more > 0 else ''}{noise.words}"
    )
    return words if noise.seed.given is None else f"{words} {SEED_WARNING}"
