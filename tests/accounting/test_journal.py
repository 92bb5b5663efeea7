"""The journal of a checkpoint holds every later release, whatever crashes, is damaged or runs elsewhere."""

import json
from unittest.mock import Mock

import pytest
import torch

import adamas
from adamas.accounting.journal import Journal, Release
from tests.support.checkpoint_copies import copied
from tests.support.processes import fork_server
from tests.support.small_runs import finish, make_run
from tests.support.stopped_runs import parameters, stopped


@pytest.fixture(scope="module")
def died(tmp_path_factory):
    """Returns a checkpoint whose journal has four releases, and their epsilon."""
    file = tmp_path_factory.mktemp("died") / "run.safetensors"
    run = make_run(seed=None)
    run.save(file)
    stopped(run, 4)
    return file, run.epsilon()


@pytest.mark.slow
def test_no_flipped_bit_of_a_journal_lowers_epsilon(died, tmp_path):
    file, spent = copied(died[0], tmp_path), died[1]
    path = Journal(file).path
    whole = path.read_bytes()
    tried = 0
    for bit in range(8 * len(whole)):
        if bit % 5:
            continue
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"damaged|that of another"):
            adamas.load(file, make_run(seed=None))
        tried += 1
    assert tried > 400
    path.write_bytes(whole)
    assert adamas.load(file, make_run(seed=None)).epsilon() == pytest.approx(spent)


def test_a_missing_journal_or_one_that_lost_a_record_is_refused(died, tmp_path):
    file, spent = copied(died[0], tmp_path), died[1]
    path = Journal(file).path
    whole = path.read_bytes()
    header, record = 48, 64
    for cut in (
        whole[:header] + whole[header + record :],
        whole[: header + record] + whole[header + 2 * record :],
    ):
        path.write_bytes(cut)
        with pytest.raises(ValueError, match="damaged"):
            adamas.load(file, make_run(seed=None))
    path.unlink()
    run = make_run(seed=None)
    before = parameters(run)
    with pytest.raises(ValueError, match="it holds what was released"):
        adamas.load(file, run)
    assert torch.equal(parameters(run), before)
    assert run.steps_done == 0
    path.write_bytes(whole)
    assert adamas.load(file, run).epsilon() == pytest.approx(spent)


def test_a_crash_between_checkpoint_and_journal_loses_nothing(tmp_path, monkeypatch):
    """A checkpoint names its journal and the one before, because a crash may leave either file."""
    file = tmp_path / "run.safetensors"
    for seed in (7, None):
        run = make_run(seed=seed)
        run.save(file)
        stopped(run, 3)
        spent = run.epsilon()
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "begin", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                run.save(file)
        other = adamas.load(file, make_run(seed=seed))
        assert (other.steps_done, other.epsilon()) == (3, spent)
        with monkeypatch.context() as patched:
            patched.setattr("adamas.run.checkpoint.write_archive", Mock(side_effect=OSError("full")))
            with pytest.raises(OSError, match="full"):
                other.save(file)
        stopped(other, 4)
        spent = other.epsilon()
        assert adamas.load(file, make_run(seed=seed)).epsilon() == spent
        for path in tmp_path.iterdir():
            path.unlink()


def hold(file, ready, leave):
    """Continues a run and keeps it alive until told to leave."""
    run = adamas.load(file, make_run(seed=None))
    stopped(run, 1)
    ready.set()
    leave.wait(60)


@pytest.mark.subprocess
def test_a_run_that_is_alive_in_another_process_is_not_continued(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None)
    run.save(file)
    del run
    context = fork_server()
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=hold, args=(file, ready, leave))
    process.start()
    assert ready.wait(60)
    with pytest.raises(RuntimeError, match="in use by another process"):
        adamas.load(file, make_run(seed=None))
    with pytest.raises(RuntimeError, match="in use by another process"):
        make_run(seed=None).save(file)
    process.kill()
    process.join(60)
    other = adamas.load(file, make_run(seed=None))  # its death released the lock
    assert sum(count for _, count in other.ledger.entries) == 1


def test_a_run_stops_when_another_run_of_the_process_has_loaded_its_checkpoint(tmp_path):
    file = tmp_path / "run.safetensors"
    run = stopped(make_run(seed=None), 2)
    run.save(file)
    other = adamas.load(file, make_run(seed=None))
    with pytest.raises(RuntimeError, match="Another run has loaded"):
        finish(run)
    finish(other)
    run.save(tmp_path / "again.safetensors")
    finish(run)


def test_a_release_repeats_another_with_the_same_identity():
    a = Release(1, 0.5, b"a" * 16)
    assert a.repeats(a._replace(attempt=3))
    assert not a.repeats(a._replace(identity=b"b" * 16))
    assert not Release(1, 0.5).repeats(Release(1, 0.5))
    assert Release.of(json.loads(json.dumps(a.plain()))) == a
