"""Checkpoints of data-parallel runs: written once, and resumed after a rank ends or hangs."""

import numpy as np
import pytest
import torch

import adamas
from tests.support import distributed_ranks as ranks

pytestmark = pytest.mark.subprocess


def assert_same_end(pool, *resumed):
    """The resumed runs end bit-equal to an uninterrupted one, whose outcome is returned.

    Releases and variances are not compared: a resumed run has only those after the checkpoint.
    """
    whole = pool(ranks.train)[0]
    for name in whole.keys() - {"releases", "variances"}:
        for one in resumed:
            np.testing.assert_array_equal(one[name], whole[name], err_msg=name)
    return whole


def test_a_checkpoint_is_written_once_and_resumes_on_two_ranks_and_on_one(pool, tmp_path):
    (writes, state, resumed), (other_writes, other_state, other) = pool(ranks.save_and_resume, str(tmp_path))
    assert (writes, other_writes) == (1, 0)
    assert state == other_state
    whole = assert_same_end(pool, resumed, other)
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
    assert mine[:2] == (4, 1)  # the checkpoint has four steps, the journal the fifth
    assert_same_end(pool, mine[2], other[2])
    died, resumed = ledger.spendings()
    assert died.finished
    assert resumed.finished
    assert [sum(count for _, count in one.entries) for one in (died, resumed)] == [5, 1]


def assert_rank_0_failed(own, peer):
    assert own.kind == "OSError"
    assert "Rank 0 of 2 failed with OSError" in peer.text


def test_a_full_disk_on_rank_0_is_an_error_on_both(pool, tmp_path):
    assert_rank_0_failed(*pool(ranks.journal_on_a_full_disk, str(tmp_path)))


def test_a_file_that_cannot_be_written_is_an_error_on_both(pool):
    assert_rank_0_failed(*pool(ranks.fail_to_write))


@pytest.mark.parametrize(("how", "timeout", "limit"), [("killed", 300.0, 100.0), ("hanging", 8.0, 100.0)])
def test_a_rank_that_dies_or_hangs_stops_the_other_and_the_checkpoint_resumes(tmp_path, how, timeout, limit):
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
    assert steps_done == 3  # the fourth step is not recorded
    run = ranks.make_run(engine="loop")
    run.load_state_dict(torch.load(tmp_path / f"{how}.pt"))
    expected = ranks.outcome(ranks.make_run(engine="loop"))
    np.testing.assert_allclose(
        ranks.outcome(run)["parameters"], expected["parameters"], rtol=1e-9, atol=1e-11
    )
