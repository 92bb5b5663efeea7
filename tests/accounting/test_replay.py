"""Replaying releases to check a run spends nothing, and covers secure noise."""

import pytest
import torch

from adamas import check, privatize
from adamas.check.replay import joined, release_of, silenced, whitened_sums
from adamas.secure_noise import SecureNoise
from tests.support.keys_of_noise import known
from tests.support.small_runs import make_run


@pytest.mark.slow
def test_a_replay_spends_nothing_and_leaves_no_file(ledger, tmp_path):
    def fresh():
        return make_run(data_ledger=ledger, checkpoint=tmp_path / "run.safetensors", checkpoint_every=1)

    rows = check.check(fresh)
    assert {row.verdict for row in rows} <= {"pass", "not applicable"}
    assert known(ledger) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.ledger"]


def test_a_replay_of_a_secure_run_uses_secure_noise():
    run = make_run(noise="secure", seed=None)
    run = run._replaced(noise=silenced(run.noise))
    assert isinstance(run.noise, SecureNoise)
    geometry = run.geometry()
    whole = joined(whitened_sums(run, release_of(run, range(10), 0), geometry))
    grid = 2.0**-20
    assert torch.allclose(whole / grid, (whole / grid).round(), atol=0.1, rtol=0)  # up to float32 rounding
    moved = whole - joined(whitened_sums(run, release_of(run, range(9), 0), geometry))
    assert 0.1 < float(moved.norm()) <= 1 + 1e-5


@pytest.mark.slow
def test_the_check_fails_if_a_secure_release_does_not_clip(monkeypatch):
    monkeypatch.setattr(privatize, "clip_weights", torch.ones_like)
    rows = check.check(lambda: make_run(noise="secure", seed=None))
    assert {row.name: row.verdict for row in rows}["sensitivity in the geometry"] == "fail"
