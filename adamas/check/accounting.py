"""Whether what is released is recorded, and at the right price."""

import math
from itertools import islice

import dp_accounting

from adamas._words import limit, rounded_up
from adamas.accounting.ledger import ACCOUNTANTS, composed_epsilon, quiet_accountants
from adamas.accounting.terms import SampledTermsDpEvent
from adamas.check.base import FAIL, NOT_APPLICABLE, PASS, Outcome, Replay
from adamas.check.measures import recorded_events
from adamas.check.replay import release_of
from adamas.errors import DistributedError
from adamas.graphs import NodeTerms
from adamas.graphs.samplers import TermSampler
from adamas.loading import dataset_length
from adamas.run.loop import PrivateRun
from adamas.sampling import Shuffled, TruncatedPoisson

_STEPS = 3


def releases_recorded(replay: Replay) -> Outcome:
    """Counts the events of releases, and composes them again, from rate, noise and steps alone."""
    run = replay.fresh()
    sampler = run.loader.sampler
    for step in islice(run, _STEPS):
        events, expected = recorded_events(run), sampler.unit(step.number - 1) + 1
        if events != expected:
            return FAIL, f"{step.number} releases left {events} events in the ledger, not {expected}"
    if not run.private:
        endless = run.epsilon() == math.inf
        return (PASS if endless else FAIL), (
            f"releases without noise, and an {'infinite' if endless else 'finite'} epsilon"
        )
    done, z = run.steps_done, run.noise_multiplier
    budget = run.budget
    release_of(run, [], done - 1)  # a second one on the last batch joins its event
    spent, direct = run.epsilon(), _composed(run, z, done, twice=True)
    seen = (
        f"{done} steps and one more release on the last batch: epsilon {rounded_up(spent)}, composed "
        f"directly {rounded_up(direct)}"
    )
    covered = spent >= direct * (1 - 1e-6)
    if budget is not None:
        planned = _composed(run, z, run.steps)
        seen += f"; all {run.steps} steps {rounded_up(planned)} of {limit(budget)}"
        covered = covered and planned <= budget * (1 + 1e-6)
    return (PASS if covered else FAIL), seen


def ranks_seeds(replay: Replay) -> Outcome:
    """Compares the random streams of the processes that train together: one draw, dealt out to the ranks."""
    run = replay.still
    if run.ranks is None:
        return NOT_APPLICABLE, "the run is in one process"
    words = run.noise.seed.words("adamas check", count=8).tolist()
    try:
        run.ranks.roll_call("adamas check", {"random streams": words})
    except DistributedError as error:
        return FAIL, str(error)
    return PASS, f"{run.ranks.world_size} ranks share one stream, and each takes its share of a draw"


def _composed(run: PrivateRun, z: float, steps: int, *, twice: bool = False) -> float:
    """Computes the epsilon of `steps` releases by dp-accounting alone; `twice`: two on the last batch.

    For terms of a graph, which it does not know, the number of terms of a node comes from the data set.
    """
    sampler, n = run.loader.sampler, dataset_length(run.loader.dataset)
    if isinstance(sampler, TermSampler):
        return _composed_terms(run, z, steps, twice)
    if isinstance(sampler, Shuffled):
        steps = -(-steps // sampler.steps_per_epoch())  # an example is in one batch of an epoch
    last = z / math.sqrt(2) if twice else z
    accountant = ACCOUNTANTS[run.accountant](sampler.relation)
    with quiet_accountants():
        for multiplier, count in ((z, steps - 1), (last, 1)):
            event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(multiplier)
            if isinstance(sampler, TruncatedPoisson):
                event = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
                    dataset_size=n,
                    sampling_probability=sampler.batch_size / n,
                    truncated_batch_size=sampler.max_batch_size,
                    noise_multiplier=multiplier,
                )
            elif not isinstance(sampler, Shuffled):
                event = dp_accounting.PoissonSampledDpEvent(sampler.batch_size / n, event)
            if count:
                accountant.compose(event, count)
        # Its transforms add this much to delta at most, where it has small ones.
        return float(accountant.get_epsilon(run.delta + (steps + 10) * 1e-15))


def _composed_terms(run: PrivateRun, z: float, steps: int, twice: bool) -> float:
    sampler, dataset = run.loader.sampler, run.loader.dataset
    assert isinstance(sampler, TermSampler)
    assert isinstance(dataset, NodeTerms)
    events = [
        (
            SampledTermsDpEvent(
                len(dataset),
                sampler.batch_size,
                min(dataset.terms_per_node, len(dataset)),
                multiplier,
                sampler.sampling,
            ),
            count,
        )
        for multiplier, count in ((z, steps - 1), (z / math.sqrt(2) if twice else z, 1))
        if count
    ]
    return composed_epsilon(events, run.delta, run.accountant, sampler.relation)
