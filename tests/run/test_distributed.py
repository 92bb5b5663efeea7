"""Data-parallel runs on two processes, against the run in one process with the same seed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import adamas
from adamas._storage.archive import read_archive
from adamas.distributed import Ranks, fingerprint
from adamas.rules import RULES
from adamas.sampling import Draw, Poisson
from tests.support import distributed_ranks as ranks

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.subprocess


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """Two ranks, for all tests that leave them alive."""
    made = ranks.Pool(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


def assert_same_outcome(two, one):
    """Both ranks equal bit for bit, and equal to one process but for the order of a float64 sum."""
    first, second = two
    assert isinstance(first, dict), two
    assert isinstance(second, dict), two
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    for name in ("parameters", "releases", "variances", "scale", "center"):
        np.testing.assert_allclose(first[name], one[name], rtol=1e-9, atol=1e-11, err_msg=name)
    for name in ("epsilon", "ledger", "draws", "steps_done"):
        assert first[name] == one[name], name


# --- equal to one process -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*RULES, "stock"])
def test_every_rule_trains_as_in_one_process_and_alike_on_both_ranks(pool, rule):
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


def test_empty_shares_and_empty_draws_are_steps_like_others(pool):
    settings = {"batch_size": 1, "steps": 20}
    sampler = Poisson(ranks.N, 1, ranks.SEED)
    assert {0, 1, 2} <= {len(sampler.indices(step).indices) for step in range(20)}
    assert_same_outcome(pool(ranks.train, **settings), ranks.outcome(ranks.make_run(**settings)))


def test_a_process_group_can_be_given(pool):
    (both, alone), (other, refused) = pool(ranks.train_in_a_group)
    expected = ranks.outcome(ranks.make_run())
    assert_same_outcome((both, other), expected)
    np.testing.assert_array_equal(alone["parameters"], expected["parameters"])  # a group of one
    assert "of which this process is a member" in refused.text


def test_absolute_releases_take_the_magnitude_of_the_total(pool):
    run = ranks.make_run()
    expected = ranks.values(run.privatize(next(run.batches()), absolute=True).mean)
    first, second = pool(ranks.absolute)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, expected, rtol=1e-9, atol=1e-12)


# --- who draws what -----------------------------------------------------------------------------------------


def test_the_ranks_read_different_examples_that_make_up_the_draw(pool):
    (first, progress, *_), (second, other_progress, *_) = pool(ranks.examples_seen, progress=None)
    sampler = Poisson(ranks.N, 12, ranks.SEED)
    for step, ((mine, drawn), (other, other_drawn)) in enumerate(zip(first, second, strict=True)):
        assert mine
        assert other
        assert not set(mine) & set(other)
        assert sorted(mine + other) == sampler.indices(step).indices.tolist()
        assert drawn != other_drawn  # dropout masks of the ranks are independent
    assert len({tuple(sorted(mine)) for mine, _ in first}) == len(first)
    assert (progress, other_progress) == (None, False)  # one progress bar


def test_a_secret_seed_is_the_same_on_both_ranks_and_in_no_state(pool):
    settings = {"seed": None, "steps": 20}
    (first, _, secret, state), (second, _, other_secret, _) = pool(ranks.examples_seen, **settings)
    assert secret == other_secret
    for (mine, _), (other, _) in zip(first, second, strict=True):
        assert not set(mine) & set(other)
        assert len(mine) - len(other) in (0, 1)  # dealt from one draw
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


def test_the_noise_is_z_once(pool):
    n, z = 200_000, 1.5
    first, second = pool(ranks.noise_only, n, z)
    np.testing.assert_array_equal(first, second)
    # The mean of n squares has a relative standard deviation of sqrt(2/n) = 0.3%. Five of them: a false alarm
    # in 2 million runs; noise of both ranks (2 z^2) or of half a rank (z^2/2) is hundreds away.
    allowed = 5 * np.sqrt(2 / n)
    variance = np.mean(first.astype(float) ** 2)
    assert abs(variance / z**2 - 1) < allowed
    assert abs(variance / (2 * z**2) - 1) > 100 * allowed / 5
    assert abs(variance / (z**2 / 2) - 1) > 100 * allowed / 5


# --- errors -------------------------------------------------------------------------------------------------


def test_an_exception_in_one_ranks_loss_is_an_error_on_both_and_releases_nothing(pool):
    (peer, at_peer, after_peer), (own, at_own, after_own) = pool(ranks.fail_in_the_loss, 3)
    assert (own.kind, own.text) == ("ZeroDivisionError", "the loss of rank 1")
    assert peer.kind == "DistributedError"
    assert "Rank 1 of 2 failed with ZeroDivisionError" in peer.text
    assert "step 3" in peer.text
    assert at_peer == at_own
    assert at_peer[0] == 2
    expected = ranks.outcome(ranks.make_run(engine="loop"))
    np.testing.assert_array_equal(after_peer, after_own)
    np.testing.assert_allclose(after_peer, expected["parameters"], rtol=1e-9, atol=1e-11)


def test_a_model_that_one_rank_refuses_is_an_error_on_both(pool):
    peer, own = pool(ranks.construct_unsupported)
    assert own.kind == "UnsupportedError"
    assert "BatchNorm1d" in own.text
    assert (peer.kind, "Rank 1 of 2 failed with UnsupportedError" in peer.text) == ("DistributedError", True)


@pytest.mark.parametrize(
    ("odd", "name"),
    [
        ({"seed": 8}, "seed"),
        ({"seed": None}, "seed"),
        ({"data": ranks.make_data(61)}, "dataset_size"),
        ({"model": ranks.make_model(1)}, "model's values"),
        ({"noise_multiplier": 1.5}, "noise_multiplier"),
        ({"clip_norm": 2.0}, "clip_norm"),
        ({"rule": "adam"}, "rule"),
        ({"lr": 0.06}, "rule's options"),
        ({"ema": 0.9}, "ema"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_ranks_that_were_set_up_differently_are_refused(pool, odd, name):
    for failure in pool(ranks.construct, odd):
        assert failure.kind == "DistributedError"
        assert f"Expected the same {name} on all ranks at make_private" in failure.text
        assert not re.search(r"\b[78]\b", failure.text)  # a seed is in no error
    assert pool(ranks.construct, {}) == [6, 6]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("weights", "Expected the same parameters and geometry on all ranks at step 3"),
        ("lr", "Expected the same parameters and geometry on all ranks at step 4"),
        ("noise", "Expected the same noise_multiplier on all ranks at step 3"),
        ("draws", "Expected the same position of the noise on all ranks at step 3"),
    ],
)
def test_ranks_that_drift_apart_stop(pool, how, words):
    for failure in pool(ranks.drift, how):
        assert failure.kind == "DistributedError"
        assert words in failure.text


def test_a_rank_that_does_something_else_is_named(pool):
    peer, own = pool(ranks.drift, "load")
    assert own.kind == "RuntimeError"  # this run has released something, so it loads nothing
    assert "Rank 1 of 2 failed with RuntimeError before all could go on with step 3" in peer.text


def test_wrapped_and_sharded_models_are_refused_with_the_remedy(pool):
    for failure in pool(ranks.wrapped_model, "ddp"):
        assert failure.kind == "UnsupportedError"
        assert "DistributedDataParallel" in failure.text
        assert "Pass the plain module" in failure.text
    for failure in pool(ranks.wrapped_model, "fsdp"):
        assert failure.kind == "UnsupportedError"
        assert "'0.weight' is a DTensor, sharded by fully_shard" in failure.text


def test_devices_without_a_backend_are_refused(pool):
    for failure in pool(ranks.check_device, "cuda"):
        assert failure.kind == "UnsupportedError"
        assert "has gloo for parameters on cuda. Use gloo for CPUs and nccl for CUDA devices" in failure.text
    assert all("has no backend for parameters on mps" in f.text for f in pool(ranks.check_device, "mps"))
    assert pool(ranks.check_device, "cpu") == [None, None]


def test_moments_without_noise_are_refused(pool):
    for failure in pool(ranks.raw_run):
        assert (failure.kind, "raw=False" in failure.text) == ("ValueError", True)


def test_without_torchrun_or_a_group_the_error_says_what_to_do(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node"):
        ranks.make_run(distributed=True)
    for wrong in ("yes", 1, None, dist.GroupMember.NON_GROUP_MEMBER):
        with pytest.raises(TypeError, match="distributed="):
            ranks.make_run(distributed=wrong)
    assert Ranks.of(False) is None


def test_fingerprints_tell_single_bits_apart():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        values = (torch.randn(50, generator=generator) * 9).to(dtype)
        name = fingerprint([values])
        assert fingerprint([values.clone()]) == name
        for i in range(len(values)):
            changed = values.clone()
            changed.view(torch.uint8)[i * values.element_size()] ^= 1
            assert fingerprint([changed]) != name
    x = torch.ones(3)
    different = [
        [x],
        [x, x],
        [x, 1.0],
        [x.view(3, 1)],
        [x.double()],
        [],
        [[x]],
        [{"a": x}],
        [{"b": x}],
        [None],
    ]
    assert len({fingerprint(values) for values in different}) == len(different)
    assert fingerprint([object()]) == fingerprint([object()])  # no address is in a name


@pytest.mark.parametrize("rule", ["macadam", "sgd"])
def test_secure_noise_is_drawn_once_for_two_ranks(pool, rule):
    mine, other = pool(ranks.train, rule=rule, noise="secure", seed=None)
    for name, value in mine.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


# --- checkpoints, and ranks that end ------------------------------------------------------------------------


def test_a_checkpoint_is_written_once_and_resumes_on_two_ranks_and_on_one(pool, tmp_path):
    (writes, state, resumed), (other_writes, other_state, other) = pool(ranks.save_and_resume, str(tmp_path))
    assert (writes, other_writes) == (1, 0)
    assert state == other_state
    whole = pool(ranks.train)[0]
    for name, value in whole.items():
        if name not in ("releases", "variances"):
            np.testing.assert_array_equal(resumed[name], value, err_msg=name)
            np.testing.assert_array_equal(other[name], value, err_msg=name)
    single = ranks.make_run()
    single.load_state_dict(torch.load(tmp_path / "oddFalse.pt"))
    finished = ranks.outcome(single)
    np.testing.assert_allclose(finished["parameters"], whole["parameters"], rtol=1e-9, atol=1e-11)
    assert finished["epsilon"] == whole["epsilon"]


def test_ranks_that_load_different_states_are_refused(pool, tmp_path):
    for failure in pool(ranks.save_and_resume, str(tmp_path), odd=True):
        assert "Expected the same model's values on all ranks at load_state_dict" in failure.text


def test_two_ranks_keep_one_checkpoint_one_journal_and_one_reservation(pool, tmp_path):
    ledger = adamas.DataLedger.create(tmp_path / "data.ledger", epsilon=50.0, delta=1e-3, accountant="rdp")
    mine, other = pool(ranks.checkpoints_by_itself, str(tmp_path))
    assert mine[:2] == other[:2]
    assert mine[:2] == (4, 1)  # the fifth step is in the journal
    whole = pool(ranks.train)[0]
    for name, value in whole.items():
        if name not in ("releases", "variances"):
            np.testing.assert_array_equal(mine[2][name], value, err_msg=name)
            np.testing.assert_array_equal(other[2][name], value, err_msg=name)
    died, went_on = ledger.spendings()
    assert died.finished
    assert went_on.finished
    assert [sum(count for _, count in one.entries) for one in (died, went_on)] == [5, 1]


def test_a_full_disk_of_rank_0_ends_both(pool, tmp_path):
    own, peer = pool(ranks.journal_on_a_full_disk, str(tmp_path))
    assert own.kind == "OSError"
    assert "Rank 0 of 2 failed with OSError" in peer.text


def test_a_file_that_cannot_be_written_is_an_error_on_both(pool):
    own, peer = pool(ranks.fail_to_write)
    assert own.kind == "OSError"
    assert "Rank 0 of 2 failed with OSError" in peer.text


@pytest.mark.parametrize(("how", "timeout", "limit"), [("killed", 300.0, 100.0), ("hanging", 8.0, 100.0)])
def test_a_rank_that_ends_or_hangs_ends_the_other_and_the_checkpoint_resumes(tmp_path, how, timeout, limit):
    pair = ranks.Pool(tmp_path)
    try:
        for pipe in pair._pipes:
            pipe.send((ranks.end_or_hang, (str(tmp_path), how, timeout), {}))
        assert pair._pipes[0].poll(600)
        failure, seconds, steps_done = pair._pipes[0].recv()
    finally:
        pair._processes[1].kill()
        pair.close()
    assert failure.kind == "DistributedError"
    assert "Rank 0 of 2 cannot reach the others" in failure.text
    assert seconds < limit
    if how == "hanging":
        assert seconds >= timeout - 1
    assert steps_done == 3  # nothing of the fourth step was recorded
    run = ranks.make_run(engine="loop")
    run.load_state_dict(torch.load(tmp_path / f"{how}.pt"))
    expected = ranks.outcome(ranks.make_run(engine="loop"))
    np.testing.assert_allclose(
        ranks.outcome(run)["parameters"], expected["parameters"], rtol=1e-9, atol=1e-11
    )


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
    (line,) = done.stdout.strip().splitlines()  # rank 0 alone speaks
    epsilon = float(re.match(r"2 ranks, epsilon (\d\.\d+), test accuracy \d+\.\d%$", line)[1])
    assert 2.9 < epsilon <= 3.0
    state = read_archive(checkpoint, "checkpoint", 2)["state"]
    assert state["spending"]["steps_done"] == 4
    assert state["settings"]["seed"] is None
    ledger = adamas.Ledger()
    ledger.load_state_dict(state["spending"]["ledger"])
    assert ledger.epsilon(1e-5) == pytest.approx(epsilon, abs=5e-4)
