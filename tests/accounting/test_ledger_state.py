"""A ledger is copied, saved and loaded without losing an event, and its state names no seed."""

import json

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation

from adamas import Ledger, sampling
from tests.support.dp_events import gaussian, sampled
from tests.support.recorded_ledgers import DELTA, ledger_of, poisson, shuffled, truncated


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
def test_a_loaded_ledger_continues_as_if_never_saved(make, saved_after):
    sampler = make()
    # The ledger is saved within and between batches and epochs.
    releases = [(0, 5.0), (1, 5.0), (1, 6.0), (2, 5.0), (3, 5.0)]
    whole = ledger_of(*releases, sampler=sampler)
    state = json.loads(json.dumps(ledger_of(*releases[:saved_after], sampler=sampler).state_dict()))
    resumed = Ledger()
    resumed.load_state_dict(state, sampler)
    for step, z in releases[saved_after:]:
        resumed.record_release(sampler, step, z)
    assert resumed.entries == whole.entries
    assert resumed.relation == whole.relation
    assert resumed.state_dict() == whole.state_dict()


def test_a_ledger_loaded_without_a_sampler_is_complete():
    ledger = ledger_of((0, 5.0), (0, 5.0))
    read = Ledger()
    read.record(gaussian(0.1))  # replaced by the loaded entries
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
def test_every_event_can_be_saved_and_loaded(event):
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


def test_the_state_names_no_seed():
    sampler = sampling.Poisson(100, 10, seed=123_456_789)
    assert "123456789" not in json.dumps(ledger_of((0, 5.0), sampler=sampler).state_dict())
