"""The budget of a run, and of all runs on a data set."""

import sqlite3
from contextlib import closing

import dp_accounting
import pytest
import torch

import adamas
from adamas import DataLedger, calibrate
from adamas.accounting.budget import Budget
from tests.support.dp_events import gaussian, sampled
from tests.support.processes import fork_server
from tests.support.small_runs import finish, make_run
from tests.support.stopped_runs import parameters, stopped

STEP, OTHER = sampled(1.0), gaussian(4.0)


def cost(*entries, delta=1e-5):
    """Returns the epsilon of events by dp_accounting, from RDP at the orders of Opacus."""
    accountant = dp_accounting.rdp.RdpAccountant(adamas.accounting.composition.RDP_ORDERS)
    for event, count in entries:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


# --- the budget of a run --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_budget_covers_whatever_costs_no_more():
    budget = Budget(3.0, 1e-5, "rdp")
    affordable = [n for n in range(1, 25) if cost((STEP, n)) <= 3.0]
    assert 1 < len(affordable) < 24
    assert [n for n in range(1, 25) if budget.covers([(STEP, n)], STEP)] == affordable
    assert budget.most(STEP, 24) == len(affordable)
    assert budget.most(STEP, 2) == 2
    with_other = [n for n in range(1, 25) if cost((STEP, n), (OTHER, 1)) <= 3.0]
    assert len(with_other) < len(affordable)
    assert [n for n in range(1, 25) if budget.covers([(OTHER, 1), (STEP, n)], STEP, 20)] == with_other


def test_the_number_of_covered_steps_is_searched_once(monkeypatch):
    budget = Budget(3.0, 1e-5, "rdp")
    asked = []
    affords = budget._affords
    monkeypatch.setattr(budget, "_affords", lambda entries: (asked.append(1), affords(entries))[1])
    answers = [budget.covers([(OTHER, 1), (STEP, n)], STEP, 1000 - n) for n in range(1, 1000)]
    assert answers == sorted(answers, reverse=True)
    assert any(answers)
    assert len(asked) < 15


@pytest.mark.slow
def test_a_run_with_a_given_noise_multiplier_ends_at_max_epsilon():
    run = make_run(max_epsilon=2.0, steps=50, accountant="rdp")
    assert 1 <= run.steps < 50
    finish(run)
    assert run.epsilon() <= 2.0
    assert (
        calibrate.steps(epsilon=2.0, delta=1e-3, noise_multiplier=1.0, sampling_rate=0.2, accountant="rdp")
        == run.steps
    )
    assert make_run(max_epsilon=50.0).steps == 6


def test_shuffled_runs_end_at_whole_epochs():
    run = make_run(max_epsilon=4.0, steps=50, sampling="shuffled", noise_multiplier=2.0)
    assert run.steps % 5 == 0
    assert 0 < run.steps < 50
    finish(run)
    assert run.epsilon() <= 4.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_epsilon": 0.01}, "max_epsilon=0.01 to pay for one step"),
        ({"max_epsilon": 1.0, "noise_multiplier": 0}, "noise_multiplier > 0 with max_epsilon"),
        ({"max_epsilon": 1.0, "noise_multiplier": None, "epsilon": 1.0}, "max_epsilon with noise_multiplier"),
        ({"max_epsilon": -1.0}, "max_epsilon=-1.0"),
    ],
)
def test_a_bad_max_epsilon_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_run(**changes)


@pytest.mark.slow
def test_an_extension_needs_a_new_budget_and_spends_the_rest_of_it():
    run = make_run(noise_multiplier=None, epsilon=1.0, accountant="rdp")
    finish(run)
    spent = run.epsilon()
    assert list(run) == []
    with pytest.raises(ValueError, match="above what was spent"):
        run.extend(steps=3, epsilon=spent / 2)
    with pytest.raises(ValueError, match="exactly one"):
        run.extend(steps=3)
    assert run.steps == 6
    before = run.noise_multiplier
    run.extend(steps=3, epsilon=1.5)
    assert run.noise_multiplier != before
    finish(run)
    assert run.steps_done == 9
    assert 1.45 < run.epsilon() <= 1.5
    expected = cost(*run.ledger.entries, delta=1e-3)
    assert run.epsilon() == pytest.approx(expected)


def test_a_release_of_an_extension_states_its_own_noise_variance():
    run = make_run(noise_multiplier=1.0)
    finish(run)
    run.extend(steps=1, noise_multiplier=3.0)
    for step in run:
        variances = set(step.release.noise_variance.values())
    assert variances == {(3.0 / 12) ** 2}


# --- the budget of a data set ---------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path):
    return DataLedger.create(tmp_path / "data.ledger", epsilon=5.0, delta=1e-3, accountant="rdp")


def test_runs_on_one_data_set_add_up(ledger):
    first = make_run(data_ledger=ledger, seed=1)
    assert ledger.epsilon() == 0.0  # the run has not begun
    finish(first)
    assert ledger.epsilon() == pytest.approx(first.epsilon("rdp"))
    second = make_run(data_ledger=str(ledger.path), seed=2)
    finish(second)
    both = cost(*first.ledger.entries, *second.ledger.entries, delta=1e-3)
    assert ledger.epsilon() == pytest.approx(both)
    assert [one.finished for one in ledger.spendings()] == [True, True]


def test_a_run_beyond_the_remaining_budget_releases_nothing(ledger):
    finish(make_run(data_ledger=ledger, steps=12))
    run = make_run(data_ledger=ledger, steps=30)
    before = parameters(run)
    with pytest.raises(adamas.BudgetError, match=r"above its budget of 5 .* is spent or reserved"):
        finish(run)
    assert run.ledger.entries == []
    assert run.noise.draws == 0
    assert torch.equal(parameters(run), before)
    assert len(ledger.spendings()) == 1


@pytest.mark.slow
def test_the_ledger_calibrates_noise_to_the_remaining_budget(ledger):
    finish(make_run(data_ledger=ledger))
    z = ledger.noise_multiplier(sampling_rate=0.2, steps=10)
    run = make_run(data_ledger=ledger, steps=10, noise_multiplier=z)
    finish(run)
    assert 4.9 < ledger.epsilon() <= 5.0
    with pytest.raises(adamas.BudgetError):
        finish(make_run(data_ledger=ledger, steps=10, noise_multiplier=z))


def test_a_stopped_run_keeps_its_reservation_until_it_is_closed(ledger):
    run = stopped(make_run(data_ledger=ledger), 2)
    (open_run,) = ledger.spendings()
    assert sum(count for _, count in open_run.entries) == 6
    assert not open_run.finished
    run.close()
    (closed,) = ledger.spendings()
    assert closed.entries == run.ledger.entries
    assert closed.finished
    finish(run)  # a closed run may continue; it reserves again
    (whole,) = ledger.spendings()
    assert sum(count for _, count in whole.entries) == 6


def test_releases_beyond_the_plan_are_reserved_before_they_are_made(ledger):
    run = make_run(data_ledger=ledger, steps=2)
    for batch in run.batches():
        run.privatize(batch)
        run.privatize(batch)
        (spending,) = ledger.spendings()
        assert cost(*spending.entries, delta=1e-3) >= cost(*run.ledger.entries, delta=1e-3) - 1e-9
    assert ledger.epsilon() == pytest.approx(run.epsilon("rdp"))


def test_a_run_that_dies_and_is_resumed_spends_once(ledger, tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(data_ledger=ledger)
    run.save(file)
    stopped(run, 3)
    resumed = adamas.load(file, make_run(data_ledger=ledger))
    finish(resumed)
    dead, continued = ledger.spendings()
    assert [sum(count for _, count in one.entries) for one in (dead, continued)] == [3, 3]
    assert dead.finished
    assert continued.finished
    assert ledger.epsilon() == pytest.approx(cost(*resumed.ledger.entries, delta=1e-3))


def test_a_dead_run_is_resumed_within_a_budget_for_a_single_run(tmp_path):
    """The budget of the data set covers the run, and not one step more."""
    price = cost((make_run().loader.sampler.event({0: [1.0]}), 6), delta=1e-3)
    ledger = DataLedger.create(tmp_path / "l", epsilon=price * 1.0001, delta=1e-3, accountant="rdp")
    file = tmp_path / "run.safetensors"
    run = make_run(data_ledger=ledger)
    run.save(file)
    stopped(run, 3)
    finish(adamas.load(file, make_run(data_ledger=ledger)))
    assert ledger.epsilon() == pytest.approx(price)


def spend(path, barrier, results):
    """Trains with the ledger at `path` as soon as all processes are ready."""
    torch.set_num_threads(1)
    run = make_run(data_ledger=path, steps=12, seed=None)
    barrier.wait(60)
    try:
        finish(run)
        results.put("finished")
    except adamas.BudgetError:
        results.put("refused")


@pytest.mark.subprocess
def test_processes_cannot_spend_the_same_budget(ledger):
    """The budget covers one of four runs that begin at the same moment."""
    assert cost((make_run().loader.sampler.event({0: [1.0]}), 24), delta=1e-3) > 5.0
    context = fork_server()
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=spend, args=(ledger.path, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
    assert found == ["finished", "refused", "refused", "refused"]
    assert ledger.epsilon() <= 5.0


def test_other_files_and_relations_are_refused(ledger, tmp_path):
    with pytest.raises(FileNotFoundError, match="adamas ledger create"):
        DataLedger(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="to be a ledger of adamas"):
        DataLedger(tmp_path / "text")
    with pytest.raises(ValueError, match="never replaced"):
        DataLedger.create(ledger.path, epsilon=1.0, delta=1e-5)
    with pytest.raises(ValueError, match="REPLACE_SPECIAL"):
        make_run(data_ledger=ledger, sampling="shuffled")
    with closing(sqlite3.connect(ledger.path)) as database, database:
        database.execute("UPDATE budget SET version = 9")
    with pytest.raises(ValueError, match="version of adamas that wrote it"):
        DataLedger(ledger.path)


def test_no_budget_covers_a_run_without_noise(ledger):
    with pytest.raises(adamas.BudgetError, match="epsilon=inf"):
        finish(make_run(data_ledger=ledger, noise_multiplier=0))
