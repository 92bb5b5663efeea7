"""A ledger counts every event once, and releases on one batch as one event."""

import json
import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation

from adamas import Ledger, UnsupportedError
from adamas.accounting.composition import composed_epsilon
from tests.support.dp_events import every_accountant, gaussian, sampled
from tests.support.recorded_ledgers import DELTA, ledger_of, poisson, shuffled, truncated

# --- events and bad arguments ---------------------------------------------------------------------------


class Unknown(dp_accounting.DpEvent):
    """An event that no accountant knows."""


@every_accountant
def test_nothing_recorded_costs_nothing(accountant):
    assert Ledger().epsilon(DELTA, accountant) == 0
    assert Ledger().entries == []


@every_accountant
def test_an_event_without_output_costs_nothing(accountant):
    ledger = Ledger()
    ledger.record(dp_accounting.NoOpDpEvent())
    assert ledger.epsilon(DELTA, accountant) == 0


@every_accountant
def test_a_non_private_event_has_an_infinite_epsilon(accountant):
    ledger = Ledger()
    ledger.record(sampled())
    ledger.record(dp_accounting.NonPrivateDpEvent())
    assert ledger.epsilon(DELTA, accountant) == math.inf


@every_accountant
@pytest.mark.parametrize("make", [poisson, shuffled])
def test_a_release_without_noise_has_an_infinite_epsilon(make, accountant):
    assert ledger_of((0, 5.0), (1, 0.0), sampler=make()).epsilon(DELTA, accountant) == math.inf


@pytest.mark.parametrize(
    "event",
    [
        Unknown(),
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.SelfComposedDpEvent(Unknown(), 3),
        dp_accounting.ComposedDpEvent([gaussian(), Unknown()]),
        dp_accounting.PoissonSampledDpEvent(0.1, Unknown()),
        dp_accounting.ComposedDpEvent([dp_accounting.SelfComposedDpEvent(Unknown(), 2)]),
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.ComposedDpEvent([gaussian(), Unknown()])),
    ],
    ids=["bare", "unsupported", "repeated", "composed", "sampled", "deep", "sampled-together"],
)
@every_accountant
def test_an_unknown_event_is_refused_instead_of_costing_nothing(event, accountant):
    ledger = Ledger()
    ledger.record(sampled())
    ledger.record(event)
    with pytest.raises(UnsupportedError, match="has no bound for"):
        ledger.epsilon(DELTA, accountant)


def test_a_bad_argument_is_refused_by_name():
    with pytest.raises(TypeError, match="event='gaussian'"):
        Ledger().record("gaussian")
    with pytest.raises(ValueError, match="count=0"):
        Ledger().record(gaussian(), count=0)
    with pytest.raises(TypeError, match=r"count=1\.5"):
        Ledger().record(gaussian(), count=1.5)
    with pytest.raises(ValueError, match=r"delta=1\.5"):
        Ledger().epsilon(1.5)
    with pytest.raises(ValueError, match="accountant='prv'"):
        Ledger().epsilon(DELTA, "prv")


@pytest.mark.parametrize("z", [-1.0, math.nan])
def test_a_bad_noise_multiplier_is_refused(z):
    with pytest.raises(ValueError, match="noise_multiplier"):
        ledger_of((0, z))


# --- order and counting ---------------------------------------------------------------------------------


@every_accountant
def test_the_order_of_events_is_irrelevant(accountant):
    events = [sampled(4.0), gaussian(9.0), sampled(4.0), dp_accounting.LaplaceDpEvent(50.0)]
    forwards, backwards = Ledger(), Ledger()
    for event in events:
        forwards.record(event)
    for event in reversed(events):
        backwards.record(event)
    assert forwards.epsilon(DELTA, accountant) == pytest.approx(
        backwards.epsilon(DELTA, accountant), rel=1e-9
    )


def test_equal_events_in_a_row_are_one_entry_with_a_count():
    ledger = Ledger()
    for event in [sampled(), sampled(), gaussian(), sampled()]:
        ledger.record(event)
    ledger.record(sampled(), count=4)
    assert ledger.entries == [(sampled(), 2), (gaussian(), 1), (sampled(), 5)]


@every_accountant
def test_a_count_costs_as_much_as_single_records(accountant):
    at_once, singly, composed = Ledger(), Ledger(), Ledger()
    at_once.record(sampled(), count=3)
    for _ in range(3):
        singly.record(sampled())
        singly.record(dp_accounting.NoOpDpEvent())
    composed.record(dp_accounting.SelfComposedDpEvent(sampled(), 3))
    value = at_once.epsilon(DELTA, accountant)
    assert singly.epsilon(DELTA, accountant) == pytest.approx(value, rel=1e-9)
    assert composed.epsilon(DELTA, accountant) == pytest.approx(value, rel=1e-9)
    assert value > ledger_of((0, 5.0), (1, 5.0)).epsilon(DELTA, accountant)


def test_many_steps_are_one_entry():
    sampler, ledger = poisson(), Ledger()
    for step in range(20_000):
        ledger.record_release(sampler, step, 5.0)
    assert ledger.entries == [(sampled(), 20_000)]
    assert len(json.dumps(ledger.state_dict())) < 1000


def test_epsilon_changes_with_new_records_and_with_the_arguments():
    ledger = ledger_of((0, 5.0))
    first = ledger.epsilon(DELTA)
    assert ledger.epsilon(DELTA) == first
    assert ledger.epsilon(1e-7) > first
    assert ledger.epsilon(DELTA, "rdp") > first
    ledger.record(sampled())
    second = ledger.epsilon(DELTA)
    assert second > first
    ledger.record_release(poisson(), 7, 5.0)
    assert ledger.epsilon(DELTA) > second


# --- several releases on one batch ----------------------------------------------------------------------


@every_accountant
def test_two_releases_on_one_batch_are_one_sampled_event(accountant):
    together = ledger_of((0, 2.0), (0, 3.0))
    joint = (2.0**-2 + 3.0**-2) ** -0.5
    assert together.entries == [
        (
            dp_accounting.PoissonSampledDpEvent(
                0.1, dp_accounting.ComposedDpEvent([gaussian(2.0), gaussian(3.0)])
            ),
            1,
        )
    ]
    value = together.epsilon(DELTA, accountant)
    assert value == pytest.approx(composed_epsilon([(sampled(joint), 1)], DELTA, accountant), rel=1e-9)
    # Sampling protects a record once, not twice: releases on two batches would cost less.
    assert value > 1.1 * ledger_of((0, 2.0), (1, 3.0)).epsilon(DELTA, accountant)


def test_two_releases_cost_the_same_in_either_order():
    assert ledger_of((0, 2.0), (0, 3.0)).epsilon(DELTA) == pytest.approx(
        ledger_of((0, 3.0), (0, 2.0)).epsilon(DELTA), rel=1e-9
    )


def test_three_releases_on_one_batch_are_one_entry():
    ledger = ledger_of((0, 5.0), (0, 5.0), (0, 5.0), (1, 5.0))
    assert [count for _, count in ledger.entries] == [1, 1]
    assert len(ledger.entries[0][0].event.events) == 3
    assert ledger.entries[1][0] == sampled()


def test_an_event_between_two_releases_on_one_batch_does_not_separate_them():
    sampler = poisson()
    together, interrupted = Ledger(), Ledger()
    for ledger in (together, interrupted):
        ledger.record_release(sampler, 0, 2.0)
        if ledger is interrupted:
            ledger.record(dp_accounting.NoOpDpEvent())
        ledger.record_release(sampler, 0, 2.0)
    assert interrupted.epsilon(DELTA) == pytest.approx(together.epsilon(DELTA), rel=1e-9)


def test_a_later_release_on_an_earlier_batch_is_refused_or_joins_its_event():
    sampler = poisson()
    ledger = ledger_of((0, 2.0), (1, 2.0), sampler=sampler)
    try:
        ledger.record_release(sampler, 0, 2.0)
    except ValueError:
        return
    assert ledger.epsilon(DELTA) >= ledger_of((0, 2.0), (0, 2.0), (1, 2.0)).epsilon(DELTA) * (1 - 1e-9)


def test_batches_of_different_samplers_are_different_events():
    ledger = Ledger()
    ledger.record_release(poisson(), 0, 5.0)
    ledger.record_release(poisson(), 0, 5.0)
    assert ledger.entries == [(sampled(), 2)]


# --- samplers -------------------------------------------------------------------------------------------


def test_shuffled_batches_of_an_epoch_are_one_unsampled_event():
    steps = shuffled().steps_per_epoch()
    assert steps == 3
    ledger = ledger_of(*[(step, 5.0) for step in range(2 * steps)], sampler=shuffled())
    assert ledger.entries == [(gaussian(), 2)]
    ledger = ledger_of(*[(step, 5.0) for step in range(2 * steps + 1)], sampler=shuffled())
    assert ledger.entries == [(gaussian(), 3)]


def test_a_shuffled_epoch_costs_as_much_as_its_costliest_batch():
    assert ledger_of((0, 5.0), (1, 3.0), (2, 4.0), sampler=shuffled()).entries == [(gaussian(3.0), 1)]
    (entry,) = ledger_of((0, 5.0), (1, 4.0), (1, 4.0), sampler=shuffled()).entries
    assert entry[0].noise_multiplier == pytest.approx(8**0.5)


@every_accountant
def test_shuffled_epochs_cost_as_much_as_gaussians_without_sampling(accountant):
    shuffled_epsilon = ledger_of((0, 5.0), (3, 5.0), sampler=shuffled()).epsilon(DELTA, accountant)
    assert shuffled_epsilon == pytest.approx(
        composed_epsilon([(gaussian(5.0 / 2**0.5), 1)], DELTA, accountant), rel=1e-3
    )


def test_truncated_poisson_has_its_own_event_and_costs_more_than_poisson():
    ledger = ledger_of((0, 5.0), (1, 5.0), sampler=truncated())
    event = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
        dataset_size=100, sampling_probability=0.1, truncated_batch_size=20, noise_multiplier=5.0
    )
    assert ledger.entries == [(event, 2)]
    assert ledger.epsilon(DELTA) > ledger_of((0, 5.0), (1, 5.0)).epsilon(DELTA)
    with pytest.raises(UnsupportedError, match="accountant='pld'"):
        ledger.epsilon(DELTA, "rdp")


def test_two_releases_on_a_truncated_batch_are_one_event_with_their_joint_multiplier():
    (entry,) = ledger_of((0, 3.0), (0, 4.0), sampler=truncated()).entries
    assert entry[0].noise_multiplier == pytest.approx(2.4)
    assert entry[1] == 1


@pytest.mark.parametrize(
    ("relation", "make"),
    [
        (NeighboringRelation.ADD_OR_REMOVE_ONE, shuffled),
        (NeighboringRelation.REPLACE_ONE, shuffled),
        (NeighboringRelation.REPLACE_ONE, poisson),
        (NeighboringRelation.REPLACE_SPECIAL, truncated),
    ],
)
def test_a_sampler_for_another_relation_is_refused(relation, make):
    ledger = Ledger(relation)
    with pytest.raises(ValueError, match=f"relation={relation.name}"):
        ledger.record_release(make(), 0, 5.0)
    assert ledger.entries == []


@pytest.mark.parametrize("make", [poisson, truncated, shuffled])
def test_a_plan_costs_as_much_as_its_run(make):
    sampler = make()
    ledger = ledger_of(*[(step, 5.0) for step in range(4)], sampler=sampler)
    planned = composed_epsilon([(sampler.plan(5.0, 4), 1)], DELTA, "pld", sampler.relation)
    assert ledger.epsilon(DELTA) == pytest.approx(planned, rel=1e-9)
