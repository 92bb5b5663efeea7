"""Attacks on what a run spends: through the public door, with a given seed or without one.

Each of these once lowered an epsilon, shared noise between two sums or exceeded a budget, without an error.
"""

import contextlib
import copy
import os
import shutil
import threading

import pytest
import torch

import adamas
from adamas import rules
from adamas._storage import files as _files
from adamas.accounting import Spending, journal
from adamas.accounting.data_ledger import DataLedger
from adamas.accounting.journal import Journal
from adamas.noise import GaussianNoise
from adamas.sampling import Poisson
from tests.support.keys_of_noise import known, shared
from tests.support.small_runs import finish, loss, make_data, make_model, make_run
from tests.support.stopped_runs import stopped


def doubled(model, batch):
    return 2 * loss(model, batch)


# --- keys -----------------------------------------------------------------------------------------------


def twice(run, step=0):
    """Two releases on one batch."""
    batch = next(run.loader.batches(step, step + 1))
    run.privatize(batch)
    run.privatize(batch)


def test_fewer_releases_on_a_batch_than_before_a_crash_do_not_share_noise(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    twice(run)
    finish(adamas.load(file, make_run()))
    assert shared(keys) == []


def test_batches_that_are_skipped_after_a_crash_do_not_share_noise(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    stopped(run, 2)
    other = adamas.load(file, make_run())
    for batch in other.batches():
        if batch.step >= 2:
            other.privatize(batch)
    assert shared(keys) == []


def test_a_second_release_on_the_batch_of_a_checkpoint_does_not_share_noise(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    twice(run)
    other = adamas.load(file, make_run())
    other.privatize(next(other.batches()))
    other.save(file)
    third = adamas.load(file, make_run())
    third.loss = doubled
    third.privatize(next(third.loader.batches(0, 1)))
    assert shared(keys) == []


def test_parameters_of_two_types_do_not_share_noise(tmp_path, keys):
    """Each type has a draw of its own; freezing one moves the counter."""

    def fresh():
        model = make_model()
        model[2].double()
        model[1] = Wide()
        return make_run(model, rules.Adam(model.parameters(), lr=0.01))

    class Wide(torch.nn.Module):
        def forward(self, x):
            return x.double().tanh()

    file = tmp_path / "run.safetensors"
    run = fresh()
    run.save(file)
    stopped(run, 3)
    other = adamas.load(file, fresh())
    other.loss = doubled
    finish(other)
    assert shared(keys) == []
    expected = finish(fresh())
    resumed = fresh()
    resumed.save(tmp_path / "again")
    stopped(resumed, 3)
    assert torch.equal(finish(adamas.load(tmp_path / "again", fresh())), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: setattr(run.noise, "draws", 0),
        lambda run: setattr(run, "noise", GaussianNoise(7)),
        lambda run: run.noise.load_state_dict({"draws": 1}),
    ],
)
def test_noise_is_not_set_back(keys, change):
    run = stopped(make_run(), 2)
    change(run)
    with pytest.raises(RuntimeError, match=r"run\.noise after 2 draws"):
        finish(run)
    assert shared(keys) == []


def test_secure_noise_is_not_set_back():
    run = stopped(make_run(noise="secure", seed=None), 2)
    run.noise.draws = 0
    with pytest.raises(RuntimeError, match=r"run\.noise after 2 draws"):
        finish(run)


def test_a_run_whose_seed_another_run_has_taken_over_draws_nothing(tmp_path, keys):
    run = stopped(make_run(), 2)
    run.save(tmp_path / "run.safetensors")
    other = adamas.load(tmp_path / "run.safetensors", make_run())
    other.loss = doubled
    finish(other)
    for name in ("again.safetensors", "run.safetensors"):
        run.save(tmp_path / name)
        with pytest.raises(RuntimeError, match="Go on with the other run"):
            finish(run)
    assert shared(keys) == []


# --- files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [7, None])
def test_each_of_several_files_knows_what_followed(tmp_path, keys, seed):
    run = stopped(make_run(seed=seed), 1)
    run.save(tmp_path / "first")
    stopped(run, 2)
    run.save(tmp_path / "second")
    finish(run)
    for name in ("first", "second"):
        other = adamas.load(tmp_path / name, make_run(seed=seed))
        assert other.epsilon() == pytest.approx(run.epsilon())
        other.loss = doubled
        finish(other)
        assert other.epsilon() > run.epsilon() + 0.1


def test_a_file_that_was_deleted_is_written_to_no_more(tmp_path):
    run = make_run(seed=None)
    for name in ("first", "second", "third"):
        run.save(tmp_path / name)
    (tmp_path / "first").unlink()
    run.save(tmp_path / "third")
    assert len(run._spending.journals) == 2


def test_another_working_folder_does_not_move_a_checkpoint(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    run = make_run(seed=None, checkpoint="run.safetensors", checkpoint_every=2)
    stopped(run, 1)
    monkeypatch.chdir(tmp_path / "b")
    stopped(run, 5)
    assert list((tmp_path / "b").iterdir()) == []
    other = adamas.load(tmp_path / "a" / "run.safetensors", make_run(seed=None))
    assert other.epsilon() == pytest.approx(run.epsilon())


FAILURES = [(Journal, "begin"), (journal, "folder_to_disk"), (_files, "folder_to_disk"), (_files, "_to_disk")]


@pytest.mark.slow
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize(("where", "name"), FAILURES)
def test_a_run_that_goes_on_after_a_save_that_failed_half_way_is_not_forgotten(
    tmp_path, monkeypatch, where, name, moved
):
    """Whatever was on disk when it failed: the run refuses to go on, or the file knows what followed."""
    file = tmp_path / "run.safetensors"
    run = make_run(seed=None)
    run.save(file)
    stopped(run, 1)
    target = tmp_path / "moved.safetensors" if moved else file

    def fail(*_):
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(where, name, fail)
        with pytest.raises(OSError, match="gone"):
            run.save(target)
    with contextlib.suppress(RuntimeError):
        stopped(run, 4)
    assert run.steps_done in (1, 4)
    for path in {file, target}:
        if path.exists():
            assert adamas.load(path, make_run(seed=None)).epsilon() >= run.epsilon() - 1e-9
    run.save(tmp_path / "third")
    run.save(target)
    finish(run)
    assert adamas.load(target, make_run(seed=None)).epsilon() == pytest.approx(run.epsilon())


@pytest.mark.parametrize("place", ["charged", "recorded"])
def test_a_signal_handler_does_not_save_in_the_middle_of_a_release(tmp_path, monkeypatch, place):
    run = make_run()
    run.save(tmp_path / "run.safetensors")
    owner, name = {"charged": (GaussianNoise, "release_"), "recorded": (Spending, "_record_in")}[place]
    original = getattr(owner, name)
    for attack in (lambda: run.save(tmp_path / "run.safetensors"), run.state_dict):

        def handled(*arguments, attack=attack):
            attack()
            return original(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, handled)
            with pytest.raises(RuntimeError, match="between two releases"):
                stopped(run, run.steps_done + 1)
    spent = run.epsilon()
    assert adamas.load(tmp_path / "run.safetensors", make_run()).epsilon() >= spent


def test_a_thread_that_saves_waits_for_the_release(tmp_path, monkeypatch):
    run = make_run()
    original = GaussianNoise.release_
    threads = []

    def slow(self, *arguments):
        thread = threading.Thread(target=lambda: run.save(tmp_path / "run.safetensors"))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        threads.append(thread)
        original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(GaussianNoise, "release_", slow)
        stopped(run, 1)
    threads[0].join()
    other = adamas.load(tmp_path / "run.safetensors", make_run())
    assert (other.steps_done, other.noise.draws) == (1, 1)


def test_a_state_does_not_take_the_place_of_releases_from_a_journal(tmp_path):
    run = make_run()
    state = copy.deepcopy(run.state_dict())
    run.save(tmp_path / "run.safetensors")
    stopped(run, 4)
    other = adamas.load(tmp_path / "run.safetensors", make_run())
    with pytest.raises(RuntimeError, match="released nothing"):
        other.load_state_dict(state)
    assert other.epsilon() == pytest.approx(run.epsilon())


# --- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch_size", "dataset_size", "seed", "rate", "max_batch_size"])
def test_the_settings_of_a_sampler_do_not_change(name):
    run = make_run(sampling="truncated-poisson", max_batch_size=30, batch_size=20)
    with pytest.raises(AttributeError):
        setattr(run.loader.sampler, name, 1)
    with pytest.raises(AttributeError):
        run.noise.seed.given = None  # a secret seed has no releases to compare with


def test_another_sampler_is_refused():
    run = make_run(batch_size=1)
    own, run.loader.sampler = run.loader.sampler, Poisson(60, 60, 7)
    with pytest.raises(RuntimeError, match=r"run\.loader\.sampler"):
        finish(run)
    batch = next(run.loader.batches(0, 1))
    run.loader.sampler = own
    with pytest.raises(RuntimeError, match=r"run\.loader\.sampler"):
        run.privatize(batch)
    assert run.noise.draws == 0


def test_the_ledger_of_a_run_forgets_nothing():
    run = stopped(make_run(), 2)
    spent = run.epsilon()
    with pytest.raises(RuntimeError, match="released nothing"):
        run.ledger.load_state_dict(adamas.Ledger().state_dict())
    with pytest.raises(AttributeError):
        run.ledger.relation = None
    assert run.epsilon() == spent


@pytest.mark.parametrize("name", ["budget", "delta", "accountant", "relation"])
def test_the_budget_of_a_data_set_is_not_changed_from_outside(ledger, name):
    with pytest.raises(AttributeError):
        setattr(ledger, name, getattr(DataLedger(ledger.path), name))


def test_an_account_that_has_finished_never_has_less(ledger, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    run = make_run(data_ledger=ledger, seed=None)
    run.save(folder / "run.safetensors")
    shutil.copytree(folder, tmp_path / "backup")
    finish(run)
    spent = ledger.epsilon()
    (account,) = ledger.spendings()
    with pytest.raises(ValueError, match="has released"):
        ledger.settle(account.id, [])
    with pytest.raises(ValueError, match="has released"):
        ledger.reserve(account.id, [])
    del run
    shutil.rmtree(folder)
    (tmp_path / "backup").rename(folder)  # an older journal, which knows of no release
    other = adamas.load(folder / "run.safetensors", make_run(data_ledger=ledger, seed=None))
    assert ledger.epsilon() == spent
    finish(other)
    assert known(ledger) == 6 + 6


def test_a_fork_does_not_give_back_what_its_parent_has_reserved(ledger):
    run = stopped(make_run(data_ledger=ledger, data=make_data()), 1)
    child = os.fork()
    if not child:
        try:
            run.close()
        except RuntimeError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    stopped(run, 5)
    assert known(ledger) >= 5
