"""What is released is charged, and no noise serves two sums: through crashes, extensions, copies and ranks.

The names of these tests say what must not happen; docs/reliability.md has the table of faults.
"""

import copy
import json
import os
import random
import shutil
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import adamas
from adamas import check, privatize, rules
from adamas._numerics.digest import KeyedDigest, _add_by_numpy
from adamas._streams import Seed
from adamas.accounting import Plan, Spending
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.journal import Journal, Release
from adamas.check.replay import joined, release_of, silenced, whitened_sums
from adamas.sampling import Poisson
from adamas.secure_noise import SecureNoise
from tests.support import distributed_ranks as ranks
from tests.support.keys_of_noise import known, shared
from tests.support.processes import fork_server
from tests.support.small_runs import finish, make_data, make_model, make_run
from tests.support.stopped_runs import counted, parameters, stopped

# --- keys -----------------------------------------------------------------------------------------------


def test_the_spy_sees_a_key_that_serves_two_sums(keys):
    finish(make_run())
    finish(make_run(model=make_model(seed=1)))  # one seed for two runs, as everybody is warned not to do
    assert len(shared(keys)) == 6


def test_a_run_that_is_resumed_and_extended_draws_other_noise(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = stopped(make_run(), 2)
    run.save(file)
    stopped(run, 4)
    other = adamas.load(file, make_run())
    other.extend(steps=3, noise_multiplier=0.7)
    finish(other)
    assert shared(keys) == []
    # Both multipliers on the batches of both runs, and one on the rest.
    sizes = [len(getattr(event.event, "events", [0])) for event, n in other.ledger.entries for _ in range(n)]
    assert sorted(sizes) == [1, 1, 1, 2, 2]


def test_without_a_file_a_state_that_is_extended_draws_other_noise(keys):
    run = stopped(make_run(), 2)
    state = copy.deepcopy(run.state_dict())
    finish(run)
    other = make_run()
    other.load_state_dict(state)
    other.extend(steps=4, noise_multiplier=0.7)
    finish(other)
    assert shared(keys) == []


class Augmented(Dataset):
    """Examples with random values: of NumPy's, Python's or torch's generator, or of one of their own."""

    def __init__(self, kind, state=0):
        self.inner, self.kind = make_data(), kind
        self.own = np.random.default_rng(state)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, i):
        x, y = self.inner[i]
        draw = {
            "numpy": lambda: np.random.rand(),
            "python": lambda: random.random(),
            "torch": lambda: float(torch.rand(())),
            "own": lambda: self.own.random(),
        }[self.kind]
        return x + draw(), y


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["numpy", "python", "torch"])
def test_augmentation_is_the_same_in_a_run_that_is_resumed(tmp_path, keys, kind, workers):
    def fresh(workers=workers):
        return make_run(data=Augmented(kind), num_workers=workers, micro_batch_size=5)

    expected = finish(fresh())
    file = tmp_path / "run.safetensors"
    run = stopped(fresh(), 1)
    run.save(file)
    stopped(run, 4)  # and then it dies
    np.random.seed(99)
    random.seed(99)
    torch.manual_seed(99)
    other = adamas.load(file, fresh())
    assert torch.equal(finish(other), expected)
    assert shared(keys) == []
    assert sum(count for _, count in other.ledger.entries) == 6
    assert torch.equal(finish(fresh(workers=0)), expected)


def test_a_repetition_that_differs_has_noise_of_its_own_and_is_charged(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run(data=Augmented("own"))
    run.save(file)
    stopped(run, 3)
    other = adamas.load(file, make_run(data=Augmented("own", state=1)))
    stopped(other, 2)
    third = adamas.load(file, make_run(data=Augmented("own", state=2)))
    finish(third)
    assert shared(keys) == []
    sizes = [len(getattr(event.event, "events", [0])) for event, n in third.ledger.entries for _ in range(n)]
    assert sorted(sizes) == [1, 1, 1, 2, 3, 3]


def test_a_rate_that_is_changed_on_the_way_does_not_share_noise(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    stopped(run, 4)
    other = adamas.load(file, make_run())
    for group in other.rule.param_groups:
        group["lr"] *= 3
    finish(other)
    assert shared(keys) == []
    # The first release is the same to the last bit, and is counted once.
    sizes = [len(getattr(event.event, "events", [0])) for event, n in other.ledger.entries for _ in range(n)]
    assert sorted(sizes) == [1, 1, 1, 2, 2, 2]


@pytest.mark.subprocess
def test_ranks_draw_on_one_of_them_and_never_twice_for_different_sums(tmp_path):
    pool = ranks.Pool(tmp_path)
    try:
        (used, ledger), (others, other_ledger) = pool(ranks.used_keys, str(tmp_path))
    finally:
        pool.close()
    assert others == []
    assert ledger == other_ledger
    served = {}
    for *key, std, sums in used:
        served.setdefault(tuple(key), set()).add((std, sums))
    assert len(served) > 6
    assert all(len(uses) == 1 for uses in served.values())


def test_copies_and_forks_do_not_repeat_noise():
    run = make_run(seed=None)
    for made in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            made(run)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(run.noise)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(SecureNoise())
    for run in (make_run(seed=None), make_run()):  # a given seed would repeat its spending
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            said = "trained"
            try:
                finish(run)
            except RuntimeError as error:
                said = str(error)
            os.write(writer, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert "make_private in the process that trains" in os.read(reader, 1000).decode()
        os.close(reader)
        os.close(writer)


def test_a_digest_shows_one_changed_bit_and_is_the_same_without_numba():
    digest = KeyedDigest(Seed(5))
    generator = torch.Generator().manual_seed(0)
    for size in (0, 1, 1023, 1024, 1025, 5000):
        x = torch.randn(size, generator=generator)
        whole = digest([x, 0.5])
        assert digest([x.clone(), 0.5]) == whole
        assert digest([x, 0.25]) != whole
        assert KeyedDigest(Seed(6))([x, 0.5]) != whole
        for place in {0, size // 2, size - 1} if size else ():
            y = x.clone()
            y.view(torch.int32)[place] ^= 1
            assert digest([y, 0.5]) != whole
    blocks = torch.randint(-(2**31), 2**31, (3, 2, 512), generator=generator).to(torch.int32)
    words = blocks.numpy().view(np.uint32)
    sums = np.zeros((3, 2), dtype=np.uint64)
    _add_by_numpy(words, digest._keys, sums)
    right = [
        [
            sum(
                int(x + a) % 2**32 * (int(y + b) % 2**32)
                for x, y, a, b in zip(*block.astype(object), *pair, strict=True)
            )
            % 2**64
            for pair in digest._keys.astype(object).reshape(2, 2, 512)
        ]
        for block in words
    ]
    assert sums.tolist() == right
    assert digest._sums(words.reshape(-1)).tolist() == right


# --- charging -------------------------------------------------------------------------------------------


def test_a_save_between_two_releases_on_one_batch_loses_neither(tmp_path):
    for seed in (7, None):
        file = tmp_path / f"{seed}.safetensors"
        run = make_run(seed=seed)
        for batch in run.batches():
            run.privatize(batch)
            run.save(file)
            run.privatize(batch)
            break
        other = adamas.load(file, make_run(seed=seed))
        assert other.epsilon() == run.epsilon()
        finish(other)
        assert other.epsilon() > run.epsilon()


def test_another_batch_does_not_join_the_event_of_the_last_one_before_a_save(tmp_path):
    """Without a seed a resumed run draws other batches, and an event of one batch does not describe two."""
    for seed in (7, None):
        file = tmp_path / f"{seed}.safetensors"
        stopped(make_run(seed=seed), 2).save(file)
        other = adamas.load(file, make_run(seed=seed))
        again = next(other.loader.batches(1, 2))
        if seed is None:
            with pytest.raises(RuntimeError, match="drew another batch"):
                other.privatize(again)
            assert sum(count for _, count in other.ledger.entries) == 2
        else:
            other.privatize(again)
        finish(other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda run: setattr(run, "steps", 200),
        lambda run: setattr(run, "noise_multiplier", 0.3),
        lambda run: setattr(run, "budget", None),
        lambda run: setattr(run, "delta", 0.5),
        lambda run: setattr(run, "accountant", "rdp"),
        lambda run: setattr(run, "steps_done", 0),
        lambda run: setattr(run, "ledger", adamas.Ledger()),
        lambda run: setattr(run, "data_ledger", None),
    ],
)
def test_the_plan_is_not_changed_from_outside(change):
    run = make_run(noise_multiplier=None, epsilon=1.0, accountant="rdp")
    with pytest.raises(AttributeError):
        change(run)


def test_batches_beyond_the_plan_are_refused_by_any_path():
    run = make_run(noise_multiplier=None, epsilon=1.0, accountant="rdp")
    for batch in run.loader.batches(0, 6):
        run.privatize(batch).write_to(run.rule)
        run.rule.step()
    with pytest.raises(adamas.BudgetError, match=r"Step 7 is beyond the 6 steps .* run\.extend"):
        run.privatize(next(run.loader.batches(6, 200)))
    assert run.steps_done == 6
    assert run.epsilon() <= 1.0
    with pytest.raises(adamas.BudgetError, match="beyond"):
        run.privatize(next(run.loader.batches(50, 51)))
    with pytest.raises(adamas.BudgetError, match="epsilon=1"):  # a second release on the last batch
        run.privatize(next(run.loader.batches(5, 6)))
    assert run.epsilon() <= 1.0


def test_a_release_with_another_multiplier_than_planned_is_refused():
    spending = Spending(Poisson(100, 10), Plan(5, 1.0, 3.0), delta=1e-5, accountant="rdp")
    with pytest.raises(ValueError, match="noise multiplier of the plan"):
        spending.charge(0, [0.3])
    assert spending.ledger.entries == []


@pytest.mark.slow
def test_extra_releases_before_a_save_are_not_forgotten_by_the_budget(tmp_path):
    """The rest of the plan is not paid for any more, and a run from the file knows that."""
    arguments = {"noise_multiplier": None, "epsilon": 2.0, "accountant": "rdp", "steps": 40}
    run = make_run(**arguments)
    for batch in run.batches():
        run.privatize(batch)
        run.privatize(batch)
        break
    run.save(tmp_path / "run.safetensors")
    other = adamas.load(tmp_path / "run.safetensors", make_run(**arguments))
    with pytest.raises(adamas.BudgetError, match="epsilon=2"):
        finish(other)
    assert 1 < other.steps_done < 40
    assert other.epsilon() <= 2.0


def test_repetitions_that_differ_do_not_exceed_a_budget_that_the_run_that_died_has_spent(tmp_path):
    """It died at its end, with nothing left; steps that come out the same may be repeated, others may not."""
    arguments = {"noise_multiplier": None, "epsilon": 2.0, "accountant": "rdp", "steps": 40}
    file = tmp_path / "run.safetensors"
    run = make_run(**arguments)
    run.save(file)
    expected = finish(run)
    other = adamas.load(file, make_run(**arguments))
    for group in other.rule.param_groups:
        group["lr"] *= 3
    with pytest.raises(adamas.BudgetError, match="epsilon=2"):
        finish(other)
    assert other.steps_done == 1  # the first release does not depend on the rate
    assert other.epsilon() <= 2.0
    third = adamas.load(file, make_run(**arguments))
    assert torch.equal(finish(third), expected)
    assert third.epsilon() <= 2.0


def test_a_state_of_a_rule_from_elsewhere_is_noticed():
    model = make_model()
    rule = rules.Adam(model.parameters(), lr=0.01)
    finish(make_run(model, rule, steps=12))
    state = copy.deepcopy(rule.state_dict())
    restored = rules.Adam(model.parameters(), lr=0.01)
    restored.load_state_dict(state)
    with pytest.raises(ValueError, match="made no step"):
        make_run(model, restored)
    finish(make_run(model, rule, seed=8))  # a second run of this process states its own epsilon
    fresh = rules.Adam(model.parameters(), lr=0.01)
    run = make_run(model, fresh)
    fresh.load_state_dict(state)  # as a trainer does that restores model and optimizer
    with pytest.raises(RuntimeError, match=r"adamas\.load"):
        finish(run)
    assert run.ledger.entries == []


def test_the_rule_of_a_stock_optimizer_is_watched_too():
    model = make_model()
    rule = torch.optim.Adam(model.parameters())
    run = make_run(model, rule)
    other = torch.optim.Adam(make_model().parameters())
    rule.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match=r"adamas\.load"):
        finish(run)


# --- journals -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def died(tmp_path_factory):
    """A checkpoint with a journal of four releases, and what they cost."""
    file = tmp_path_factory.mktemp("died") / "run.safetensors"
    run = make_run(seed=None)
    run.save(file)
    stopped(run, 4)
    return file, run.epsilon()


def copied(died, folder):
    file, spent = died
    for path in file.parent.iterdir():
        shutil.copy(path, folder / path.name)
    return folder / file.name, spent


@pytest.mark.slow
def test_no_flipped_bit_of_a_journal_lowers_epsilon(died, tmp_path):
    file, spent = copied(died, tmp_path)
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


def test_a_journal_that_is_missing_or_lost_a_record_is_refused(died, tmp_path):
    file, spent = copied(died, tmp_path)
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
    """The checkpoint names its journal and the one before, whichever of the two files a crash leaves."""
    file = tmp_path / "run.safetensors"
    for seed in (7, None):
        run = make_run(seed=seed)
        run.save(file)
        stopped(run, 3)
        spent = run.epsilon()
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "begin", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                run.save(file)
        other = adamas.load(file, make_run(seed=seed))
        assert (other.steps_done, other.epsilon()) == (3, spent)
        with monkeypatch.context() as patched:
            patched.setattr(
                "adamas.run.checkpoint.write_archive", lambda *_: (_ for _ in ()).throw(OSError("full"))
            )
            with pytest.raises(OSError, match="full"):
                other.save(file)
        stopped(other, 4)
        spent = other.epsilon()
        assert adamas.load(file, make_run(seed=seed)).epsilon() == spent
        for path in tmp_path.iterdir():
            path.unlink()


def hold(file, ready, leave):
    run = adamas.load(file, make_run(seed=None))
    stopped(run, 1)
    ready.set()
    leave.wait(60)


@pytest.mark.subprocess
def test_a_run_that_is_alive_elsewhere_is_not_continued(tmp_path):
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
    other = adamas.load(file, make_run(seed=None))  # its death lets go of it
    assert sum(count for _, count in other.ledger.entries) == 1


def test_a_run_whose_checkpoint_was_loaded_here_does_not_go_on_beside(tmp_path):
    file = tmp_path / "run.safetensors"
    run = stopped(make_run(seed=None), 2)
    run.save(file)
    other = adamas.load(file, make_run(seed=None))
    with pytest.raises(RuntimeError, match="Another run has loaded"):
        finish(run)
    finish(other)
    run.save(tmp_path / "again.safetensors")
    finish(run)


# --- the data set's ledger ------------------------------------------------------------------------------


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
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        for path in (file, Journal(file).path):
            shutil.copy(path, tmp_path / str(number) / path.name)
    finish(run)
    for number in range(3):
        finish(adamas.load(tmp_path / str(number) / file.name, make_run(seed=None, data_ledger=ledger)))
    assert known(ledger) == 6 + 3 * 5


def test_a_copy_of_the_files_does_not_settle_the_account_of_a_run_that_is_alive(ledger, tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None, data_ledger=ledger)
    run.save(file)
    stopped(run, 2)
    (tmp_path / "copy").mkdir()
    for path in (file, Journal(file).path):
        shutil.copy(path, tmp_path / "copy" / path.name)
    other = adamas.load(tmp_path / "copy" / file.name, make_run(seed=None, data_ledger=ledger))
    stopped(other, 1)
    assert not ledger.spendings()[0].finished
    finish(run)
    finish(other)
    assert known(ledger) == 6 + 6


def test_a_run_that_moves_to_another_file_is_not_settled_by_the_old_one(ledger, tmp_path):
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


def test_older_files_in_the_place_of_newer_ones_do_not_settle_the_account(ledger, tmp_path):
    """The run that died wrote to a later journal, which nobody has any more."""
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None, data_ledger=ledger)
    stopped(run, 1)
    run.save(file)
    stopped(run, 2)
    old = {path: path.read_bytes() for path in (file, Journal(file).path)}
    run.save(file)
    stopped(run, 5)  # and then it dies
    del run
    for path, content in old.items():
        path.write_bytes(content)
    other = adamas.load(file, make_run(seed=None, data_ledger=ledger))
    finish(other)
    assert known(ledger) >= 5 + 5
    assert not ledger.spendings()[0].finished


@pytest.mark.slow
def test_a_run_without_a_seed_that_dies_early_goes_on_with_what_fits(tmp_path):
    """Killed after 3 of 100 steps, without a checkpoint since: the budget pays for 97 more."""
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
        with sqlite3.connect(ledger.path) as database:
            assert database.execute(change).rowcount
        database.close()
        with pytest.raises(ValueError, match=r"ledger of adamas|version"):
            DataLedger(ledger.path).epsilon()
        with pytest.raises(ValueError, match="ledger of adamas"):
            finish(make_run(data_ledger=ledger, seed=3))
        ledger.path.write_bytes(whole)
    # Random bits: refused, or read as what was written.
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


def test_a_ledger_that_cannot_be_written_releases_nothing(ledger, monkeypatch):
    run = make_run(data_ledger=ledger)
    monkeypatch.setattr(
        "adamas.accounting.data_ledger.write_account",
        lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("database or disk is full")),
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


def live(folder, number, ready):
    """One life of a run with a data set's ledger, which notes each release after it was made."""
    torch.set_num_threads(1)
    folder = Path(folder)
    run = make_run(
        seed=None,
        steps=400,
        checkpoint=folder / "run.safetensors",
        checkpoint_every=3,
        resume=True,
        data_ledger=folder / "data.ledger",
    )
    with (folder / "made").open("ab", buffering=0) as made:
        ready.set()
        for _ in run:
            made.write(b"1")


@pytest.mark.kills
def test_kills_at_random_moments_never_lower_the_sum_of_a_data_set(tmp_path):
    """20 processes are killed from the start of their run on; what they released is in the ledger."""
    ledger = DataLedger.create(tmp_path / "data.ledger", epsilon=900.0, delta=1e-3, accountant="rdp")
    context = fork_server()
    moments = random.Random(1)
    (tmp_path / "made").touch()
    for number in range(LIVES):
        ready = context.Event()
        process = context.Process(target=live, args=(str(tmp_path), number, ready))
        process.start()
        assert ready.wait(60)
        if number % 2:  # every second life makes three releases, however slow the machine is
            before, end = (tmp_path / "made").stat().st_size, time.monotonic() + 60
            while (tmp_path / "made").stat().st_size < before + 3 and time.monotonic() < end:
                time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.15))
        process.kill()
        process.join(60)
        made = (tmp_path / "made").stat().st_size
        assert known(ledger) >= made
    assert made > LIVES
    run = make_run(
        seed=None,
        steps=400,
        checkpoint=tmp_path / "run.safetensors",
        checkpoint_every=50,
        resume=True,
        data_ledger=ledger,
    )
    assert sum(counted(run).values()) >= made
    stopped(run, run.steps_done + 1)
    run.close()
    made += 1
    # What died was settled by whoever held its journal: no more is lost than one release in flight each.
    assert made <= known(ledger) <= made + LIVES
    assert ledger.epsilon() >= run.epsilon("rdp") * (1 - 1e-9)


# --- replays --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_replay_spends_nothing_and_leaves_no_file(ledger, tmp_path):
    def fresh():
        return make_run(data_ledger=ledger, checkpoint=tmp_path / "run.safetensors", checkpoint_every=1)

    rows = check.check(fresh)
    assert {row.verdict for row in rows} <= {"pass", "not applicable"}
    assert known(ledger) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.ledger"]


def test_a_replay_of_secure_noise_goes_through_the_secure_branch():
    run = make_run(noise="secure", seed=None)
    run = run._replaced(noise=silenced(run.noise))
    assert isinstance(run.noise, SecureNoise)
    geometry = run.geometry()
    whole = joined(whitened_sums(run, release_of(run, range(10), 0), geometry))
    grid = 2.0**-20
    assert torch.allclose(whole / grid, (whole / grid).round(), atol=0.1, rtol=0)  # but for float32
    moved = whole - joined(whitened_sums(run, release_of(run, range(9), 0), geometry))
    assert 0.1 < float(moved.norm()) <= 1 + 1e-5


@pytest.mark.slow
def test_a_secure_release_that_forgets_to_clip_is_seen_by_the_check(monkeypatch):
    monkeypatch.setattr(privatize, "clip_weights", torch.ones_like)
    rows = check.check(lambda: make_run(noise="secure", seed=None))
    assert {row.name: row.verdict for row in rows}["sensitivity in the geometry"] == "fail"


def test_the_state_of_a_run_is_plain_data():
    run = stopped(make_run(), 2)
    assert json.loads(json.dumps(run.state_dict()["spending"])) == run.state_dict()["spending"]


def test_a_release_knows_what_repeats_it():
    a = Release(1, 0.5, b"a" * 16)
    assert a.repeats(a._replace(attempt=3))
    assert not a.repeats(a._replace(identity=b"b" * 16))
    assert not Release(1, 0.5).repeats(Release(1, 0.5))
    assert Release.of(json.loads(json.dumps(a.plain()))) == a
