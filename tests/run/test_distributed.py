"""Data-parallel runs on two processes: equal to the run in one process with the same seed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import adamas
from adamas._storage.archive import read_archive
from adamas.rules import RULES
from adamas.sampling import Draw, Poisson
from tests.support import distributed_ranks as ranks

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.subprocess


def assert_same_outcome(two, one):
    """The ranks are bit-equal; one process differs from them only by the order of a float64 sum."""
    first, second = two
    assert isinstance(first, dict), two
    assert isinstance(second, dict), two
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    for name in ("parameters", "releases", "variances", "scale", "center"):
        np.testing.assert_allclose(first[name], one[name], rtol=1e-9, atol=1e-11, err_msg=name)
    for name in ("epsilon", "ledger", "draws", "steps_done"):
        assert first[name] == one[name], name


@pytest.mark.parametrize("rule", [*RULES, "stock"])
def test_every_rule_trains_as_in_one_process_and_equally_on_both_ranks(pool, rule):
    assert_same_outcome(pool(ranks.train, rule=rule), ranks.outcome(ranks.make_run(rule)))


@pytest.mark.parametrize(
    "settings",
    [
        {"micro_batch_size": 1},
        {"micro_batch_size": 4},
        {"num_workers": 1, "micro_batch_size": 3},
        {"sampling": "shuffled", "batch_size": 13},
        {"sampling": "truncated-poisson", "max_batch_size": 15, "accountant": "pld", "noise_multiplier": 0.0},
        {"engine": "loop"},
        {"ema": 0.9},
        {"accountant": "pld"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_the_options_of_a_run_work_as_in_one_process(pool, settings):
    assert_same_outcome(pool(ranks.train, **settings), ranks.outcome(ranks.make_run(**settings)))


def test_empty_shares_and_empty_batches_are_ordinary_steps(pool):
    settings = {"batch_size": 1, "steps": 20}
    sampler = Poisson(ranks.N, 1, ranks.SEED)
    assert {0, 1, 2} <= {len(sampler.indices(step).indices) for step in range(20)}
    assert_same_outcome(pool(ranks.train, **settings), ranks.outcome(ranks.make_run(**settings)))


def test_one_rank_writes_the_log_and_all_stop_at_the_step_that_it_decides(pool):
    (logged, done, scores), (nothing, other, told) = pool(ranks.watched)
    assert (logged, nothing) == ([1, 2, 3], [])
    assert done == other == 3
    assert scores == told == [(1, 0.0), (2, 0.0), (3, 0.0)]


def test_a_process_group_can_be_given(pool):
    (both, alone), (other, refused) = pool(ranks.train_in_a_group)
    expected = ranks.outcome(ranks.make_run())
    assert_same_outcome((both, other), expected)
    np.testing.assert_array_equal(alone["parameters"], expected["parameters"])  # in a group of one rank
    assert "of which this process is a member" in refused.text


def test_absolute_releases_take_the_magnitude_of_the_total(pool):
    run = ranks.make_run()
    expected = ranks.values(run.privatize(next(run.batches()), absolute=True).mean)
    first, second = pool(ranks.absolute)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, expected, rtol=1e-9, atol=1e-12)


def test_the_ranks_read_disjoint_shares_of_each_batch(pool):
    (first, progress, *_), (second, other_progress, *_) = pool(ranks.examples_seen, progress=None)
    sampler = Poisson(ranks.N, 12, ranks.SEED)
    for step, ((mine, drawn), (other, other_drawn)) in enumerate(zip(first, second, strict=True)):
        assert mine
        assert other
        assert not set(mine) & set(other)
        assert sorted(mine + other) == sampler.indices(step).indices.tolist()
        assert drawn != other_drawn  # the ranks' dropout masks are independent
    assert len({tuple(sorted(mine)) for mine, _ in first}) == len(first)
    assert (progress, other_progress) == (None, False)  # one progress bar


def test_a_secret_seed_is_the_same_on_both_ranks_and_in_no_state(pool):
    settings = {"seed": None, "steps": 20}
    (first, _, secret, state), (second, _, other_secret, _) = pool(ranks.examples_seen, **settings)
    assert secret == other_secret
    for (mine, _), (other, _) in zip(first, second, strict=True):
        assert not set(mine) & set(other)
        assert len(mine) - len(other) in (0, 1)  # shares of one batch
    assert state["seed"] is None
    assert pool(ranks.examples_seen, **settings)[0][2] != secret


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize(("size", "padding"), [(0, 0), (1, 0), (7, 0), (8, 3), (4, 4)])
def test_shares_are_a_partition_that_keeps_padding_last(size, padding, world_size):
    draw = Draw(np.arange(100, 100 + size), padding)
    shares = [draw.dealt(rank, world_size) for rank in range(world_size)]
    assert sorted(np.concatenate([s.indices for s in shares])) == draw.indices.tolist()
    real = [s.indices[: len(s.indices) - s.padding] for s in shares]
    assert sorted(np.concatenate(real)) == draw.indices[: size - padding].tolist()
    sizes = [len(s.indices) for s in shares]
    assert max(sizes) - min(sizes) <= 1


def test_the_noise_is_added_once_for_all_ranks(pool):
    n, z = 200_000, 1.5
    first, second = pool(ranks.noise_only, n, z)
    np.testing.assert_array_equal(first, second)
    # The mean of n squares has a relative standard deviation of sqrt(2/n) = 0.3%. The limit is five of them:
    # one false alarm in 2 million runs. Noise of both ranks (2 z^2) or of half a rank (z^2/2) is more than a
    # hundred away.
    allowed = 5 * np.sqrt(2 / n)
    variance = np.mean(first.astype(float) ** 2)
    assert abs(variance / z**2 - 1) < allowed
    assert abs(variance / (2 * z**2) - 1) > 100 * allowed / 5
    assert abs(variance / (z**2 / 2) - 1) > 100 * allowed / 5


@pytest.mark.parametrize("rule", ["macadam", "sgd"])
def test_secure_noise_is_drawn_once_for_two_ranks(pool, rule):
    mine, other = pool(ranks.train, rule=rule, noise="secure", seed=None)
    for name, value in mine.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_torchrun_trains_the_example_within_its_budget(tmp_path):
    checkpoint = tmp_path / "digits.safetensors"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        str(ROOT / "examples" / "distributed" / "train.py"),
    ]
    environment = os.environ | {
        **{"CHECKPOINT": str(checkpoint), "STEPS": "4", "OMP_NUM_THREADS": "1"},
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.strip().splitlines()  # only rank 0 prints
    epsilon = float(re.match(r"2 ranks, epsilon (\d\.\d+), test accuracy \d+\.\d%$", line)[1])
    assert 2.9 < epsilon <= 3.0
    state = read_archive(checkpoint, "checkpoint", 2)["state"]
    assert state["spending"]["steps_done"] == 4
    assert state["settings"]["seed"] is None
    ledger = adamas.Ledger()
    ledger.load_state_dict(state["spending"]["ledger"])
    assert ledger.epsilon(1e-5) == pytest.approx(epsilon, abs=5e-4)
