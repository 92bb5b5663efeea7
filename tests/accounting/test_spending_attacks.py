"""Attacks on the spending of a run through public names, with and without a given seed.

Each of them once lowered an epsilon, added the same noise to two sums or exceeded a budget, without an error.
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


# --- keys of the noise ----------------------------------------------------------------------------------


def twice(run, step=0):
    """Makes two releases on one batch."""
    batch = next(run.loader.batches(step, step + 1))
    run.privatize(batch)
    run.privatize(batch)


def test_fewer_releases_on_a_batch_than_before_a_crash_share_no_noise(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    twice(run)
    finish(adamas.load(file, make_run()))
    assert shared(keys) == []


def test_skipping_batches_after_a_crash_shares_no_noise(tmp_path, keys):
    file = tmp_path / "run.safetensors"
    run = make_run()
    run.save(file)
    stopped(run, 2)
    other = adamas.load(file, make_run())
    for batch in other.batches():
        if batch.step >= 2:
            other.privatize(batch)
    assert shared(keys) == []


def test_a_second_release_on_the_batch_of_a_checkpoint_shares_no_noise(tmp_path, keys):
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


def test_parameters_of_two_dtypes_share_no_noise(tmp_path, keys):
    """Each dtype has a draw of its own, so the counter of draws moves twice per release."""

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
def test_noise_cannot_be_rewound(keys, change):
    run = stopped(make_run(), 2)
    change(run)
    with pytest.raises(RuntimeError, match=r"run\.noise after 2 draws"):
        finish(run)
    assert shared(keys) == []


def test_secure_noise_cannot_be_rewound():
    run = stopped(make_run(noise="secure", seed=None), 2)
    run.noise.draws = 0
    with pytest.raises(RuntimeError, match=r"run\.noise after 2 draws"):
        finish(run)


def test_a_run_draws_nothing_after_another_run_took_over_its_seed(tmp_path, keys):
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


# --- checkpoints and journals ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [7, None])
def test_each_of_several_checkpoints_counts_all_later_releases(tmp_path, keys, seed):
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


def test_a_deleted_checkpoint_has_no_journal(tmp_path):
    run = make_run(seed=None)
    for name in ("first", "second", "third"):
        run.save(tmp_path / name)
    (tmp_path / "first").unlink()
    run.save(tmp_path / "third")
    assert len(run._spending.journals) == 2


def test_changing_the_working_directory_does_not_move_a_checkpoint(tmp_path, monkeypatch):
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
def test_releases_after_a_half_written_save_are_not_lost(tmp_path, monkeypatch, where, name, moved):
    """Wherever the save failed, the run refuses to continue or the file counts its later releases."""
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
def test_a_signal_handler_cannot_save_in_the_middle_of_a_release(tmp_path, monkeypatch, place):
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


def test_a_save_in_another_thread_waits_for_the_release(tmp_path, monkeypatch):
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


def test_loading_a_state_does_not_discard_releases_from_a_journal(tmp_path):
    run = make_run()
    state = copy.deepcopy(run.state_dict())
    run.save(tmp_path / "run.safetensors")
    stopped(run, 4)
    other = adamas.load(tmp_path / "run.safetensors", make_run())
    with pytest.raises(RuntimeError, match="released nothing"):
        other.load_state_dict(state)
    assert other.epsilon() == pytest.approx(run.epsilon())


# --- samplers, ledgers and accounts ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch_size", "dataset_size", "seed", "rate", "max_batch_size"])
def test_the_settings_of_a_sampler_cannot_be_changed(name):
    run = make_run(sampling="truncated-poisson", max_batch_size=30, batch_size=20)
    with pytest.raises(AttributeError):
        setattr(run.loader.sampler, name, 1)
    with pytest.raises(AttributeError):
        run.noise.seed.given = None  # a secret seed would turn off the comparison of releases


def test_replacing_the_sampler_is_refused():
    run = make_run(batch_size=1)
    own, run.loader.sampler = run.loader.sampler, Poisson(60, 60, 7)
    with pytest.raises(RuntimeError, match=r"run\.loader\.sampler"):
        finish(run)
    batch = next(run.loader.batches(0, 1))
    run.loader.sampler = own
    with pytest.raises(RuntimeError, match=r"run\.loader\.sampler"):
        run.privatize(batch)
    assert run.noise.draws == 0


def test_the_ledger_of_a_run_cannot_be_reset():
    run = stopped(make_run(), 2)
    spent = run.epsilon()
    with pytest.raises(RuntimeError, match="released nothing"):
        run.ledger.load_state_dict(adamas.Ledger().state_dict())
    with pytest.raises(AttributeError):
        run.ledger.relation = None
    assert run.epsilon() == spent


@pytest.mark.parametrize("name", ["budget", "delta", "accountant", "relation"])
def test_the_budget_of_a_data_set_cannot_be_changed_from_outside(ledger, name):
    with pytest.raises(AttributeError):
        setattr(ledger, name, getattr(DataLedger(ledger.path), name))


def test_a_finished_account_never_shrinks(ledger, tmp_path):
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
    (tmp_path / "backup").rename(folder)  # an older journal, without any release
    other = adamas.load(folder / "run.safetensors", make_run(data_ledger=ledger, seed=None))
    assert ledger.epsilon() == spent
    finish(other)
    assert known(ledger) == 6 + 6


def test_a_fork_cannot_return_the_reservation_of_its_parent(ledger):
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
