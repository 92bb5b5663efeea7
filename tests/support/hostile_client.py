"""Federated trainings with one hostile client, and the assertion that it did no harm."""

import json
from pathlib import Path

import pytest
import torch

from adamas.federated.settings import FederatedSettings
from tests.support import federated_blobs
from tests.support.federated_runs import blobs, lines, saved_state

HOSTILE = 1


def everybody(**options) -> FederatedSettings:
    """Settings of a short training in which every client takes part in every round."""
    return blobs(participation=1.0, rounds=2, local_steps=1, **options)


def assert_unharmed(out: Path, settings: FederatedSettings, *, asked: list[int]) -> None:
    """Asserts that training finished without the hostile client, with a sound state and the right epsilon."""
    result = json.loads((out / "result.json").read_text())
    assert result["rounds"] == settings.rounds
    assert result["rounds_asked"] == asked
    for line in lines(out):
        assert line["answered"] == [client for client in range(4) if client != HOSTILE]
        ((client, reason),) = line["left_out"].items()
        assert client == str(HOSTILE)
        assert reason
        assert len(reason) < 400
        assert reason.isprintable()
    fresh = settings.make_algorithm().start(federated_blobs.make_model())
    state = saved_state(out)["state"]
    assert state.keys() == fresh.keys()
    for name, arrays in fresh.items():
        for key, value in arrays.items():
            assert state[name][key].dtype == value.dtype
            assert state[name][key].layout == torch.strided
            assert state[name][key].shape == value.shape
            assert bool(state[name][key].isfinite().all())
    smallest = min(size for size in result["sizes"] if size)
    cost = settings.plan([smallest]).epsilon(settings.noise_multiplier)
    assert result["epsilon"] == pytest.approx(cost)
