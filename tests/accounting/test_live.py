"""The bound on epsilon at every step: never below the exact one, and cheap."""

import pytest

import adamas
from adamas.accounting import live
from adamas.accounting.composition import composed_epsilon
from adamas.callbacks import EarlyStopping
from tests.support.small_runs import make_run


def counting(monkeypatch):
    """Counts how often the bound composes."""
    calls = []

    def composed(*args, **options):
        calls.append(args)
        return composed_epsilon(*args, **options)

    monkeypatch.setattr(live, "composed_epsilon", composed)
    return calls


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_the_bound_is_never_below_epsilon_and_ends_at_it(accountant, sampling):
    if (accountant, sampling) == ("rdp", "shuffled"):
        pytest.skip("RDP has no bound for it")
    ahead = {"poisson": 1.5, "shuffled": 1.7}[sampling]  # a shuffled run is bounded by whole epochs
    run = make_run(accountant=accountant, sampling=sampling, steps=40)
    for _ in run:
        assert run.epsilon() <= run.epsilon_bound() <= run.epsilon() * ahead
    assert run.epsilon_bound() == run.epsilon()


def test_the_bound_of_a_budget_stays_within_it():
    run = make_run(epsilon=2.0, noise_multiplier=None, steps=30)
    bounds = [run.epsilon_bound() for _ in run]
    assert bounds == sorted(bounds)
    assert bounds[-1] == run.epsilon() <= 2.0


def test_releases_from_elsewhere_are_in_the_bound():
    run = make_run(epsilon=2.0, noise_multiplier=None, steps=6)
    run.ledger.record(
        run.ledger.of([(run.loader.sampler.event({0: [0.5]}), 3)], run.ledger.relation).entries[0][0], 3
    )
    for _ in zip(run.batches(), range(2), strict=False):
        pass
    assert run.epsilon_bound() >= run.epsilon() > 2.0


def test_two_releases_on_a_batch_are_in_the_bound():
    run = make_run(steps=8)
    for batch in run.batches():
        run.privatize(batch, absolute=True)
        run.privatize(batch)
        assert run.epsilon_bound() >= run.epsilon()
    assert run.epsilon_bound() == run.epsilon()


def test_unplanned_releases_do_not_bring_the_bound_above_the_budget():
    run = make_run(epsilon=2.0, noise_multiplier=None, steps=60)
    seen = []

    def train():
        for batch in run.batches():
            if batch.step % 7 == 0:
                run.privatize(batch, absolute=True)
            run.privatize(batch)
            seen.append((run.epsilon(), run.epsilon_bound()))

    with pytest.raises(adamas.BudgetError):
        train()
    assert all(exact <= bound <= 2.0 for exact, bound in seen)
    assert seen[-1][0] > 1.9


def test_a_run_without_noise_has_an_infinite_bound():
    run = make_run(noise_multiplier=0.0)
    assert run.epsilon_bound() == 0.0
    next(iter(run))
    assert run.epsilon_bound() == float("inf")


def test_a_long_run_composes_about_thirty_times(monkeypatch):
    calls = counting(monkeypatch)
    run = make_run(steps=400, accountant="rdp")
    for _ in run:
        run.epsilon_bound()
    assert 20 <= len(calls) <= 34


def test_an_extended_run_is_bounded_anew():
    run = make_run(steps=4)
    for _ in run:
        pass
    run.extend(steps=5, noise_multiplier=0.7)
    for _ in run:
        assert run.epsilon_bound() >= run.epsilon()
    assert run.epsilon_bound() == run.epsilon()


def test_a_run_that_stops_early_is_bounded_by_what_it_spent_and_a_little_more():
    run = make_run(steps=40, callbacks=[EarlyStopping(lambda model: 0.0, patience=1, every=5)])
    for _ in run:
        pass
    assert run.steps_done == 10
    assert run.epsilon() <= run.epsilon_bound() <= run.epsilon() * 1.5
