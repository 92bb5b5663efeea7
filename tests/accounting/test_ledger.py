"""The ledger counts every event once, as what it is."""

import json
import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation

from adamas import Ledger, UnsupportedError, sampling
from adamas.accounting.composition import composed_epsilon, epsilon_curve

DELTA = 1e-5


def gaussian(z=5.0):
    return dp_accounting.GaussianDpEvent(z)


def sampled(z=5.0, rate=0.1):
    return dp_accounting.PoissonSampledDpEvent(rate, gaussian(z))


def poisson():
    return sampling.Poisson(dataset_size=100, batch_size=10, seed=0)


def truncated():
    return sampling.TruncatedPoisson(dataset_size=100, batch_size=10, max_batch_size=20, seed=0)


def shuffled():
    return sampling.Shuffled(dataset_size=100, batch_size=40, seed=0)


def ledger_of(*releases, sampler=None):
    sampler = sampler or poisson()
    ledger = Ledger(sampler.relation)
    for step, z in releases:
        ledger.record_release(sampler, step, z)
    return ledger


class Unknown(dp_accounting.DpEvent):
    """An event that no accountant has heard of."""


# Nothing, everything, unknown ---------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_nothing_recorded_costs_nothing(accountant):
    assert Ledger().epsilon(DELTA, accountant) == 0
    assert Ledger().entries == []


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_an_event_without_output_costs_nothing(accountant):
    ledger = Ledger()
    ledger.record(dp_accounting.NoOpDpEvent())
    assert ledger.epsilon(DELTA, accountant) == 0


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_non_private_event_costs_everything(accountant):
    ledger = Ledger()
    ledger.record(sampled())
    ledger.record(dp_accounting.NonPrivateDpEvent())
    assert ledger.epsilon(DELTA, accountant) == math.inf


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("make", [poisson, shuffled])
def test_a_release_without_noise_costs_everything(make, accountant):
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
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_unknown_events_are_refused_and_never_counted_as_nothing(event, accountant):
    ledger = Ledger()
    ledger.record(sampled())
    ledger.record(event)
    with pytest.raises(UnsupportedError, match="has no bound for"):
        ledger.epsilon(DELTA, accountant)


def test_bad_arguments_are_named():
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
def test_a_release_with_a_meaningless_multiplier_is_refused(z):
    with pytest.raises(ValueError, match="noise_multiplier"):
        ledger_of((0, z))


# Order and counting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
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


def test_equal_neighbours_are_one_entry_with_a_count():
    ledger = Ledger()
    for event in [sampled(), sampled(), gaussian(), sampled()]:
        ledger.record(event)
    ledger.record(sampled(), count=4)
    assert ledger.entries == [(sampled(), 2), (gaussian(), 1), (sampled(), 5)]


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_count_costs_as_much_as_so_many_records(accountant):
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


def test_epsilon_follows_new_records_and_the_arguments():
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


# Several releases on one batch --------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
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
    # The batch hides a record once, not twice: two batches would cost less.
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


def test_another_event_between_two_releases_does_not_split_their_batch():
    sampler = poisson()
    together, interrupted = Ledger(), Ledger()
    for ledger in (together, interrupted):
        ledger.record_release(sampler, 0, 2.0)
        if ledger is interrupted:
            ledger.record(dp_accounting.NoOpDpEvent())
        ledger.record_release(sampler, 0, 2.0)
    assert interrupted.epsilon(DELTA) == pytest.approx(together.epsilon(DELTA), rel=1e-9)


def test_a_return_to_an_earlier_batch_is_refused_or_counted_as_one_event():
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


# Samplers -----------------------------------------------------------------------------------------------


def test_shuffled_batches_of_an_epoch_are_one_unsampled_event():
    steps = shuffled().steps_per_epoch()
    assert steps == 3
    ledger = ledger_of(*[(step, 5.0) for step in range(2 * steps)], sampler=shuffled())
    assert ledger.entries == [(gaussian(), 2)]
    ledger = ledger_of(*[(step, 5.0) for step in range(2 * steps + 1)], sampler=shuffled())
    assert ledger.entries == [(gaussian(), 3)]


def test_the_costliest_batch_of_a_shuffled_epoch_stands_for_it():
    assert ledger_of((0, 5.0), (1, 3.0), (2, 4.0), sampler=shuffled()).entries == [(gaussian(3.0), 1)]
    (entry,) = ledger_of((0, 5.0), (1, 4.0), (1, 4.0), sampler=shuffled()).entries
    assert entry[0].noise_multiplier == pytest.approx(8**0.5)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_shuffled_epochs_cost_what_unsampled_gaussians_do(accountant):
    shuffled_epsilon = ledger_of((0, 5.0), (3, 5.0), sampler=shuffled()).epsilon(DELTA, accountant)
    assert shuffled_epsilon == pytest.approx(
        composed_epsilon([(gaussian(5.0 / 2**0.5), 1)], DELTA, accountant), rel=1e-3
    )


def test_truncated_poisson_states_its_own_event_and_costs_more_than_poisson():
    ledger = ledger_of((0, 5.0), (1, 5.0), sampler=truncated())
    event = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
        dataset_size=100, sampling_probability=0.1, truncated_batch_size=20, noise_multiplier=5.0
    )
    assert ledger.entries == [(event, 2)]
    assert ledger.epsilon(DELTA) > ledger_of((0, 5.0), (1, 5.0)).epsilon(DELTA)
    with pytest.raises(UnsupportedError, match="accountant='pld'"):
        ledger.epsilon(DELTA, "rdp")


def test_two_releases_on_a_truncated_batch_are_one_event_of_their_joint_multiplier():
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
def test_a_plan_costs_what_the_run_will_have_cost(make):
    sampler = make()
    ledger = ledger_of(*[(step, 5.0) for step in range(4)], sampler=sampler)
    planned = composed_epsilon([(sampler.plan(5.0, 4), 1)], DELTA, "pld", sampler.relation)
    assert ledger.epsilon(DELTA) == pytest.approx(planned, rel=1e-9)


# Copies and checkpoints ---------------------------------------------------------------------------------


def test_a_copy_is_independent():
    sampler, ledger = poisson(), Ledger()
    ledger.record(gaussian())
    ledger.record_release(sampler, 0, 5.0)
    copy = ledger.copy()
    before, value = ledger.entries, ledger.epsilon(DELTA)
    assert copy.entries == before
    copy.record_release(sampler, 0, 5.0)
    copy.record(gaussian(1.0))
    assert ledger.entries == before
    assert ledger.epsilon(DELTA) == value
    assert copy.epsilon(DELTA) > value
    ledger.record_release(sampler, 1, 5.0)
    assert len(copy.entries) == 3


def test_a_copy_keeps_the_relation():
    assert ledger_of((0, 5.0), sampler=shuffled()).copy().relation == NeighboringRelation.REPLACE_SPECIAL


@pytest.mark.parametrize("make", [poisson, truncated, shuffled])
@pytest.mark.parametrize("saved_after", range(5))
def test_recording_continues_from_a_checkpoint_as_if_never_saved(make, saved_after):
    sampler = make()
    releases = [(0, 5.0), (1, 5.0), (1, 6.0), (2, 5.0), (3, 5.0)]  # within and between batches and epochs
    whole = ledger_of(*releases, sampler=sampler)
    state = json.loads(json.dumps(ledger_of(*releases[:saved_after], sampler=sampler).state_dict()))
    resumed = Ledger()
    resumed.load_state_dict(state, sampler)
    for step, z in releases[saved_after:]:
        resumed.record_release(sampler, step, z)
    assert resumed.entries == whole.entries
    assert resumed.relation == whole.relation
    assert resumed.state_dict() == whole.state_dict()


def test_a_loaded_ledger_without_a_sampler_is_complete():
    ledger = ledger_of((0, 5.0), (0, 5.0))
    read = Ledger()
    read.record(gaussian(0.1))  # replaced by what is loaded
    assert read.epsilon(DELTA, "rdp") > 10
    read.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert read.entries == ledger.entries
    assert read.epsilon(DELTA, "rdp") == ledger.epsilon(DELTA, "rdp")


@pytest.mark.parametrize(
    "event",
    [
        gaussian(),
        dp_accounting.LaplaceDpEvent(2.0),
        dp_accounting.NoOpDpEvent(),
        dp_accounting.NonPrivateDpEvent(),
        dp_accounting.SelfComposedDpEvent(sampled(), 3),
        dp_accounting.ComposedDpEvent([gaussian(), dp_accounting.ComposedDpEvent([sampled()])]),
        dp_accounting.SampledWithoutReplacementDpEvent(100, 10, gaussian()),
        dp_accounting.ZCDpEvent(0.1),
        dp_accounting.dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0], [0.9, 0.1]),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_can_be_recorded_can_be_saved_and_loaded(event):
    ledger, loaded = Ledger(), Ledger()
    ledger.record(event, count=2)
    loaded.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert loaded.entries == ledger.entries == [(event, 2)]


def test_a_state_with_an_unknown_event_is_refused_and_changes_nothing():
    state = ledger_of((0, 5.0), (1, 5.0)).state_dict()
    state["entries"][0]["event"]["kind"] = "Path"
    ledger = ledger_of((0, 3.0))
    with pytest.raises(ValueError, match="kind='Path'"):
        ledger.load_state_dict(state)
    assert ledger.entries == [(sampled(3.0), 1)]


def test_a_checkpoint_names_no_seed():
    sampler = sampling.Poisson(100, 10, seed=123_456_789)
    assert "123456789" not in json.dumps(ledger_of((0, 5.0), sampler=sampler).state_dict())


# Curves and cells ---------------------------------------------------------------------------------------


def test_coarse_cells_bound_the_fine_value():
    entries = [(sampled(), 100)]
    fine = composed_epsilon(entries, DELTA, coarse=False)
    coarse = composed_epsilon(entries, DELTA, coarse=True)
    assert fine < coarse < 1.05 * fine
    assert composed_epsilon(entries, DELTA) == fine


def test_a_curve_under_another_relation_ends_on_its_value():
    relation = NeighboringRelation.REPLACE_SPECIAL
    curve = epsilon_curve(gaussian(), 3, DELTA, relation)
    assert curve[-1] == composed_epsilon([(gaussian(), 3)], DELTA, "pld", relation)
    assert (curve[:-1] < curve[1:]).all()
