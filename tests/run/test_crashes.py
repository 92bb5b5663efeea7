"""Crashes: a run that dies resumes, and every release that it made is in the ledger."""

import errno
import json
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import adamas
from adamas._storage.archive import read_archive
from adamas.accounting.journal import Journal, Release
from tests.support.finished_runs import make_finished
from tests.support.journals import journaled
from tests.support.processes import fork_server
from tests.support.small_runs import finish, make_run
from tests.support.stopped_runs import counted, parameters, stopped

STEPS = 2 * 150  # more steps than fifty short lives complete


def live(folder, seed, ready):
    """Continues the run for one life of a process, and notes each release after it is made."""
    torch.set_num_threads(1)
    run = make_run(
        steps=STEPS,
        seed=seed,
        checkpoint=Path(folder) / "run.safetensors",
        checkpoint_every=4,
        resume=True,
    )
    with (Path(folder) / "made").open("ab", buffering=0) as made:
        for number, step in enumerate(run):
            made.write(step.number.to_bytes(4, "big"))
            if number == 0:
                ready.set()
    np.save(Path(folder) / "end.npy", parameters(run).numpy())
    (Path(folder) / "ledger.json").write_text(json.dumps(run.ledger.state_dict()))
    ready.set()


def recorded(folder, seed):
    """Returns how many releases the files record after a death, and how many steps the checkpoint has."""
    content = read_archive(folder / "run.safetensors", "checkpoint", 2)
    state = content["state"]["spending"]
    ledger = adamas.Ledger()
    ledger.load_state_dict(state["ledger"])
    again = {step for step, *_ in state["to_record"]}
    begun = Journal(folder / "run.safetensors").token() == content["journal"]
    parts = journaled(folder / "run.safetensors") if begun else []
    lost = [release.step for part in parts for release in part]
    repeated = len(again | set(lost)) if seed is not None else len(lost)
    return sum(count for _, count in ledger.entries) + repeated, state["steps_done"]


@pytest.mark.kills
@pytest.mark.parametrize("seed", [3, None])
def test_fifty_kills_lose_neither_the_run_nor_a_release(seed, tmp_path):
    """Kills each process, as `kill -9` does, at a random moment after its first step.

    With a seed, the result is bit-equal to a run without kills. Without one, steps are repeated with new
    noise, and the ledger holds every release of every life.
    """
    context = fork_server()
    moments = random.Random(0)
    kills = 0
    while not (tmp_path / "end.npy").exists():
        ready = context.Event()
        process = context.Process(target=live, args=(str(tmp_path), seed, ready))
        process.start()
        assert ready.wait(60), "no step within a minute"
        if kills < 50:
            time.sleep(moments.uniform(0, 0.02))
            process.kill()
        process.join(60)
        kills += process.exitcode == -9
        made = (tmp_path / "made").stat().st_size // 4
        known, done = recorded(tmp_path, seed)
        if seed is None:
            assert known >= made
        else:
            numbers = np.frombuffer((tmp_path / "made").read_bytes(), dtype=">u4")
            assert known >= numbers.max()
            assert done <= numbers.max()
    assert kills == 50
    ledger = adamas.Ledger()
    ledger.load_state_dict(json.loads((tmp_path / "ledger.json").read_text()))
    total = sum(count for _, count in ledger.entries)
    if seed is None:
        assert total >= made > STEPS
    else:
        assert total == STEPS
        whole = finish(make_run(steps=STEPS, seed=seed))
        assert np.array_equal(np.load(tmp_path / "end.npy"), whole.numpy())


def test_lost_releases_of_a_run_without_a_seed_are_charged(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None)
    stopped(run, 2).save(file)
    for batch in run.batches():  # makes two releases on each batch, and then dies
        run.privatize(batch)
        run.privatize(batch)
        if batch.step == 3:
            break
    resumed = adamas.load(file, make_run(seed=None))
    assert resumed.steps_done == 2
    assert counted(resumed) == counted(run)
    assert resumed.epsilon() == pytest.approx(run.epsilon(), rel=1e-9)


@pytest.mark.slow
def test_a_budget_holds_across_crashes(tmp_path):
    """A run without a seed, which pays for repeated steps, stops within its budget."""
    arguments = {"seed": None, "noise_multiplier": None, "epsilon": 2.0, "accountant": "rdp"}
    file = tmp_path / "run.safetensors"
    run = make_run(**arguments)
    run.save(file)
    stopped(run, 4)
    resumed = adamas.load(file, make_run(**arguments))
    assert resumed.steps == 2  # the rest of the budget pays for two
    finish(resumed)
    assert resumed.steps_done == 2
    assert sum(count for _, count in resumed.ledger.entries) == 6
    assert resumed.epsilon() <= 2.0


def test_a_release_that_is_not_repeated_is_charged(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    for batch in run.batches():  # makes two releases on the first batch, and then dies
        run.privatize(batch)
        run.privatize(batch)
        break
    spent = run.epsilon()
    resumed = adamas.load(file, make_run())
    assert resumed.epsilon() == spent
    stopped(resumed, 1)
    assert resumed.epsilon() >= spent
    finish(resumed)  # makes one release on each batch
    event, count = resumed.ledger.entries[0]
    assert (len(event.event.events), count) == (2, 1)
    assert sum(count for _, count in resumed.ledger.entries) == 6


def test_steps_repeated_after_several_crashes_are_charged_once(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    spent = stopped(run, 3).epsilon()
    stopped(adamas.load(file, make_run()), 2)
    resumed = adamas.load(file, make_run())
    assert resumed.epsilon() == spent
    finish(resumed)
    assert resumed.epsilon() == make_finished().epsilon()
    assert [[release.step for release in part] for part in journaled(file)] == [[0, 1, 2], [3, 4, 5]]


def test_a_second_crash_does_not_forget_the_first(tmp_path):
    def fresh():
        return make_run(checkpoint=tmp_path / "run.safetensors", checkpoint_every=6, resume=True)

    run = stopped(fresh(), 4)
    spent = run.epsilon()
    stopped(fresh(), 1)
    resumed = fresh()
    assert resumed.steps_done == 0
    assert resumed.epsilon() >= spent
    finish(resumed)
    assert resumed.epsilon() == make_finished().epsilon()


@pytest.mark.parametrize("name", ["run", "copy"])
def test_a_manual_checkpoint_and_the_automatic_one_both_keep_a_journal(name, tmp_path):
    run = make_run(seed=None, steps=9, checkpoint=tmp_path / "run", checkpoint_every=4)
    stopped(run, 2)
    run.save(tmp_path / "copy")
    stopped(run, 3)
    resumed = adamas.load(tmp_path / name, make_run(seed=None, steps=9))
    assert counted(resumed) == counted(run)
    finish(run)
    assert adamas.load(tmp_path / "run", make_run(seed=None, steps=9)).steps_done == 9


def test_repeated_steps_with_another_result_are_charged_despite_the_seed(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    stopped(run, 2)
    resumed = adamas.load(file, make_run())
    assert resumed.ledger.entries == []
    assert resumed.epsilon() == run.epsilon()  # the lost steps count, whether or not they are repeated
    with torch.no_grad():
        next(resumed.model.parameters()).mul_(1 + 1e-6)  # another version of torch may round differently
    stopped(resumed, 2)
    ((event, count),) = resumed.ledger.entries
    assert (len(event.event.events), count) == (2, 2)


def test_the_journal_is_on_disk_before_the_noise_is_drawn(tmp_path, monkeypatch):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), fsync(handle)))
    for name in ("normal_", "add_normal_"):
        original = getattr(type(run.noise), name)

        def seen(self, *arguments, original=original, **options):
            assert len(journaled(file)) == 1
            assert synced
            return original(self, *arguments, **options)

        monkeypatch.setattr(type(run.noise), name, seen)
    stopped(run, 1)
    ((release,),) = journaled(file)
    assert release[:2] == (0, 1.0)


def test_a_torn_journal_record_is_dropped(tmp_path):
    journal = Journal(tmp_path / "run.safetensors")
    token = journal.restart()
    journal.append([Release(0, 1.0), Release(1, 1.5)])
    with journal.path.open("ab") as file:
        file.write(b"torn")
    other = Journal(tmp_path / "run.safetensors")  # in the next process
    assert other.read(token) == [[Release(0, 1.0), Release(1, 1.5)]]
    other.append([Release(1, 1.5)])
    assert journaled(tmp_path / "run.safetensors") == [[Release(0, 1.0), Release(1, 1.5)], [Release(1, 1.5)]]
    with journal.path.open("ab") as file:
        file.write(bytes(200))  # a power failure may leave zeros
    assert len(journaled(tmp_path / "run.safetensors")) == 2


@pytest.mark.parametrize("fault", ["none", "part", "sync"])
def test_nothing_is_released_if_the_journal_cannot_be_written(tmp_path, monkeypatch, fault):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    before = parameters(run)
    write = os.pwrite

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    if fault == "sync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        some = (lambda handle, data, at: write(handle, data[:10], at)) if fault == "part" else full
        monkeypatch.setattr(os, "pwrite", some)
    with pytest.raises(OSError, match=r"[Nn]o space|disk full"):
        finish(run)
    monkeypatch.undo()
    assert run.ledger.entries == []
    assert run.noise.draws == 0
    assert torch.equal(parameters(run), before)
    assert torch.equal(finish(run), finish(make_run()))
