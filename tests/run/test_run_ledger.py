"""A run's ledger and budget: every release is recorded, and none exceeds the budget."""

import dp_accounting
import pytest
import torch

import adamas
from tests.support.custom_losses import make_run_with
from tests.support.small_runs import finish, loss, make_data, make_run


def test_the_ledger_holds_one_event_for_each_step():
    run = make_run()
    finish(run)
    event = dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.GaussianDpEvent(1.0))
    assert run.ledger.entries == [(event, 6)]


def test_two_releases_on_one_batch_are_one_sampled_event():
    run = make_run()
    for batch in run.batches():
        run.privatize(batch)
        run.privatize(batch)
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    inner = dp_accounting.ComposedDpEvent([gaussian, gaussian])
    assert run.ledger.entries == [(dp_accounting.PoissonSampledDpEvent(0.2, inner), 6)]
    joint = adamas.calibrate.epsilon(noise_multiplier=2**-0.5, sampling_rate=0.2, steps=6, delta=1e-3)
    assert run.epsilon() == pytest.approx(joint)


def test_a_budget_is_never_exceeded():
    run = make_run(noise_multiplier=None, epsilon=2.0)
    finish(run)
    assert 1.98 < run.epsilon() <= 2.0

    run = make_run(noise_multiplier=None, epsilon=2.0, accountant="rdp")

    def twice_each():
        for batch in run.batches():
            run.privatize(batch)
            run.privatize(batch)

    with pytest.raises(RuntimeError, match="epsilon=2"):
        twice_each()
    assert run.epsilon() <= 2.0


@pytest.mark.slow
def test_other_events_in_the_ledger_and_a_resume_do_not_raise_the_budget():
    budget = {"noise_multiplier": None, "epsilon": 2.0, "accountant": "rdp", "steps": 15}
    run = make_run(**budget)
    run.ledger.record(dp_accounting.GaussianDpEvent(3.0))
    with pytest.raises(RuntimeError, match="epsilon=2"):
        finish(run)
    assert run.epsilon() <= 2.0

    run = make_run(**budget)
    batch = next(iter(run.batches()))
    run.privatize(batch)
    run.privatize(batch)
    resumed = make_run(**budget)
    resumed.load_state_dict(run.state_dict())
    with pytest.raises(RuntimeError, match="epsilon=2"):
        finish(resumed)
    assert resumed.epsilon() <= 2.0


def test_an_earlier_run_in_the_same_ledger_counts_against_the_budget():
    run = make_run(noise_multiplier=None, epsilon=2.0, accountant="rdp", steps=3)
    run.ledger.record(run.loader.sampler.event({0: [run.noise_multiplier]}), count=3)
    with pytest.raises(RuntimeError, match="epsilon=2"):
        finish(run)
    assert run.epsilon() <= 2.0


def test_a_batch_of_another_run_or_step_is_refused():
    run, other = make_run(), make_run()
    with pytest.raises(TypeError, match=r"run.batches\(\)"):
        run.privatize(make_data()[:3])
    with pytest.raises(TypeError, match=r"run.batches\(\)"):
        run.privatize(next(iter(other.batches())))
    batches = run.batches()
    first = next(batches)
    run.privatize(first)
    run.privatize(next(batches))
    with pytest.raises(RuntimeError, match="current batch"):
        run.privatize(first)


def test_shuffled_batches_cost_one_unsampled_gaussian_per_epoch():
    run = make_run(sampling="shuffled", steps=None, epochs=3, noise_multiplier=5.0)
    finish(run)
    assert run.steps == 15
    assert run.ledger.entries == [(dp_accounting.GaussianDpEvent(5.0), 3)]
    assert run.ledger.relation == dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    poisson = adamas.calibrate.epsilon(noise_multiplier=5.0, sampling_rate=0.2, steps=15, delta=1e-3)
    assert run.epsilon() > poisson


def test_truncated_batches_have_one_shape_and_padding_has_no_influence():

    def truncated(max_batch_size):
        options = {"sampling": "truncated-poisson", "max_batch_size": max_batch_size}
        return make_run_with(loss, seed=2, engine="loop", **options)

    run = truncated(30)
    # No batch has more than 30 examples, so that only the padding differs.
    torch.testing.assert_close(finish(run), finish(truncated(50)))
    assert all(len(run.loader.sampler.indices(step).indices) == 30 for step in range(4))
    event = run.ledger.entries[0][0]
    assert isinstance(event, dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent)
    assert event.truncated_batch_size == 30
    with pytest.raises(adamas.UnsupportedError, match="accountant='pld'"):
        run.epsilon(accountant="rdp")


def test_a_large_delta_can_be_confirmed():
    assert finish(make_run(delta=0.1, allow_large_delta=True)).isfinite().all()
