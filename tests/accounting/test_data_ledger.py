"""The ledger of a data set counts every release of every run, whatever is copied, crashes or is damaged."""

import copy
import random
import sqlite3
import time
from contextlib import closing
from unittest.mock import Mock

import pytest
import torch

import adamas
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.journal import Journal
from tests.support.checkpoint_copies import copied
from tests.support.keys_of_noise import known
from tests.support.processes import fork_server
from tests.support.small_runs import finish, make_run
from tests.support.stopped_runs import counted, stopped


@pytest.mark.parametrize("seed", [7, None])
def test_several_continuations_of_one_state_add_up(ledger, seed):
    run = stopped(make_run(seed=seed, data_ledger=ledger), 1)
    state = copy.deepcopy(run.state_dict())
    run.close()
    for _ in range(3):
        other = make_run(seed=seed, data_ledger=ledger)
        other.load_state_dict(copy.deepcopy(state))
        finish(other)
    assert known(ledger) == 1 + 3 * 5
    assert len(ledger.spendings()) == 4


def test_several_continuations_of_copied_files_add_up(ledger, tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None, data_ledger=ledger)
    stopped(run, 1)
    run.save(file)
    copies = [copied(file, tmp_path / str(number)) for number in range(3)]
    finish(run)
    for copy_of_file in copies:
        finish(adamas.load(copy_of_file, make_run(seed=None, data_ledger=ledger)))
    assert known(ledger) == 6 + 3 * 5


def test_a_copy_of_the_files_does_not_settle_the_account_of_a_live_run(ledger, tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None, data_ledger=ledger)
    run.save(file)
    stopped(run, 2)
    other = adamas.load(copied(file, tmp_path / "copy"), make_run(seed=None, data_ledger=ledger))
    stopped(other, 1)
    assert not ledger.spendings()[0].finished
    finish(run)
    finish(other)
    assert known(ledger) == 6 + 6


def test_an_old_file_does_not_settle_the_account_of_a_run_saved_elsewhere(ledger, tmp_path):
    run = make_run(seed=None, data_ledger=ledger)
    run.save(tmp_path / "first")
    stopped(run, 1)
    run.save(tmp_path / "second")
    stopped(run, 3)
    other = adamas.load(tmp_path / "first", make_run(seed=None, data_ledger=ledger))
    stopped(other, 1)
    finish(run)
    finish(other)
    assert known(ledger) >= 6 + 6


def test_older_files_in_place_of_newer_ones_do_not_settle_the_account(ledger, tmp_path):
    """The run that died wrote to a later journal, which is lost."""
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None, data_ledger=ledger)
    stopped(run, 1)
    run.save(file)
    stopped(run, 2)
    old = {path: path.read_bytes() for path in (file, Journal(file).path)}
    run.save(file)
    stopped(run, 5)  # where it dies
    del run
    for path, content in old.items():
        path.write_bytes(content)
    other = adamas.load(file, make_run(seed=None, data_ledger=ledger))
    finish(other)
    assert known(ledger) >= 5 + 5
    assert not ledger.spendings()[0].finished


@pytest.mark.slow
def test_a_run_without_a_seed_that_dies_early_continues_within_the_budget(tmp_path):
    """The run dies after 3 of 100 steps, without a later checkpoint; the budget covers at most 97 more."""
    arguments = {"seed": None, "steps": 100, "noise_multiplier": None, "epsilon": 2.0, "accountant": "rdp"}
    for own_budget in (True, False):
        folder = tmp_path / str(own_budget)
        folder.mkdir()
        spare = (
            {}
            if own_budget
            else {"epsilon": None, "noise_multiplier": make_run(**arguments).noise_multiplier}
        )
        data = DataLedger.create(folder / "data.ledger", epsilon=2.0, delta=1e-3, accountant="rdp")
        file = folder / "run.safetensors"
        run = make_run(**arguments | spare, data_ledger=data)
        run.save(file)
        stopped(run, 3)
        other = adamas.load(file, make_run(**arguments | spare, data_ledger=data))
        finish(other)
        assert 90 < other.steps_done <= 97
        assert other.epsilon() <= 2.0
        assert data.epsilon() <= 2.0
        assert known(data) == 3 + other.steps_done
        assert all(one.finished for one in data.spendings())


def test_a_damaged_ledger_of_a_data_set_is_refused(ledger):
    finish(make_run(data_ledger=ledger, seed=1))
    finish(make_run(data_ledger=ledger, seed=2))
    whole = ledger.path.read_bytes()
    changes = [
        "UPDATE budget SET epsilon = 500.0",
        "UPDATE budget SET delta = 0.5",
        "UPDATE accounts SET entries = replace(entries, '\"count\": 6', '\"count\": 1')",
        "UPDATE accounts SET finished = 0",
        "DELETE FROM accounts WHERE rowid = 1",
        "DELETE FROM accounts",
        "DELETE FROM budget",
    ]
    for change in changes:
        with closing(sqlite3.connect(ledger.path)) as database, database:
            assert database.execute(change).rowcount
        database.close()
        with pytest.raises(ValueError, match=r"ledger of adamas|version"):
            DataLedger(ledger.path).epsilon()
        with pytest.raises(ValueError, match="ledger of adamas"):
            finish(make_run(data_ledger=ledger, seed=3))
        ledger.path.write_bytes(whole)
    # With a random bit flipped, the file is refused or read as it was written.
    generator = random.Random(0)
    spent = ledger.epsilon()
    for _ in range(200):
        changed = bytearray(whole)
        bit = generator.randrange(8 * len(whole))
        changed[bit // 8] ^= 1 << bit % 8
        ledger.path.write_bytes(changed)
        try:
            found = DataLedger(ledger.path)
            assert found.epsilon() == spent
            assert found.budget == 50.0
        except (ValueError, OSError):
            pass
        ledger.path.write_bytes(whole)


def test_nothing_is_released_if_the_ledger_cannot_be_written(ledger, monkeypatch):
    run = make_run(data_ledger=ledger)
    monkeypatch.setattr(
        "adamas.accounting.data_ledger.write_account",
        Mock(side_effect=sqlite3.OperationalError("database or disk is full")),
    )
    with pytest.raises(OSError, match=r"disk is full\. Nothing was reserved"):
        finish(run)
    assert run.noise.draws == 0
    assert run.ledger.entries == []
    monkeypatch.undo()
    assert known(ledger) == 0
    finish(run)
    assert known(ledger) == 6


LIVES = 20


def resume(folder, checkpoint_every):
    """Makes the run of a folder, or continues it."""
    return make_run(
        seed=None,
        steps=400,
        checkpoint=folder / "run.safetensors",
        checkpoint_every=checkpoint_every,
        resume=True,
        data_ledger=folder / "data.ledger",
    )


def live(folder, ready):
    """Trains until it is killed, and notes each release after it was made."""
    torch.set_num_threads(1)
    run = resume(folder, checkpoint_every=3)
    with (folder / "made").open("ab", buffering=0) as made:
        ready.set()
        for _ in run:
            made.write(b"1")


@pytest.mark.kills
def test_kills_at_random_moments_lose_no_release(tmp_path):
    """20 processes are killed while they train; all that they released is in the ledger."""
    ledger = DataLedger.create(tmp_path / "data.ledger", epsilon=900.0, delta=1e-3, accountant="rdp")
    context = fork_server()
    moments = random.Random(1)
    (tmp_path / "made").touch()
    for number in range(LIVES):
        ready = context.Event()
        process = context.Process(target=live, args=(tmp_path, ready))
        process.start()
        assert ready.wait(60)
        if number % 2:  # every second process makes three releases, however slow the machine is
            before, end = (tmp_path / "made").stat().st_size, time.monotonic() + 60
            while (tmp_path / "made").stat().st_size < before + 3 and time.monotonic() < end:
                time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.15))
        process.kill()
        process.join(60)
        made = (tmp_path / "made").stat().st_size
        assert known(ledger) >= made
    assert made > LIVES
    run = resume(tmp_path, checkpoint_every=50)
    assert sum(counted(run).values()) >= made
    stopped(run, run.steps_done + 1)
    run.close()
    made += 1
    # The next process settled the account of the dead one from its journal. Each death wastes at most one
    # release: the one that was recorded but not made.
    assert made <= known(ledger) <= made + LIVES
    assert ledger.epsilon() >= run.epsilon("rdp") * (1 - 1e-9)
