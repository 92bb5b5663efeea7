"""Releases before a run count against its budget, and once more when it resumes."""

import pytest

import adamas
from adamas.queries import noisy_counts
from tests.support.small_runs import finish, make_run


def released(noise_multiplier=2.0):
    ledger = adamas.Ledger()
    noisy_counts([3], noise_multiplier=noise_multiplier, ledger=ledger)
    return ledger


def test_the_budget_pays_for_earlier_releases():
    alone = make_run(epsilon=4.0, noise_multiplier=None)
    run = make_run(epsilon=4.0, noise_multiplier=None, spent=released())
    assert run.noise_multiplier > alone.noise_multiplier
    assert run.epsilon() == released().epsilon(1e-3) > 0
    finish(run)
    assert 3.9 < run.epsilon() <= 4.0
    assert run.steps_done == 6


def test_epsilon_is_that_of_one_ledger_with_all_events():
    run = make_run(spent=released())
    finish(run)
    together = released()
    for event, count in (
        make_run().ledger.of([(run.loader.sampler.event({0: [1.0]}), 6)], together.relation).entries
    ):
        together.record(event, count)
    assert run.epsilon() == pytest.approx(together.epsilon(1e-3), rel=1e-6)


def test_a_limit_pays_for_fewer_steps():
    alone = make_run(steps=300, max_epsilon=6.0)
    run = make_run(steps=300, max_epsilon=6.0, spent=released(0.8))
    assert 0 < run.steps < alone.steps


def test_the_statement_tells_of_earlier_releases():
    assert (
        "Epsilon also counts releases from before the run or from a process that died: 1."
        in make_run(spent=released()).privacy_statement()
    )
    alone = make_run()
    finish(alone)
    assert "also counts" not in alone.privacy_statement()


def test_a_budget_that_is_spent_already_is_refused():
    with pytest.raises(ValueError, match=r"epsilon=1\.0 above what spent= holds already"):
        make_run(epsilon=1.0, noise_multiplier=None, spent=released(0.5))


def test_a_ledger_of_another_relation_is_refused():
    with pytest.raises(ValueError, match="spent= under the relation of sampling='shuffled'"):
        make_run(sampling="shuffled", spent=released())
    with pytest.raises(TypeError, match="spent="):
        make_run(spent=[])


def test_a_resumed_run_counts_them_again_and_keeps_its_budget(tmp_path):
    """A script that resumes makes its earlier releases again, with other noise."""
    file = tmp_path / "run.safetensors"
    options = {"epsilon": 4.0, "noise_multiplier": None, "steps": 30, "seed": None}
    run = make_run(spent=released(), **options)
    for step in run:
        if step.number == 10:
            break
    run.save(file)
    spent = run.epsilon()
    del run
    again = adamas.load(file, make_run(spent=released(), **options))
    assert again.epsilon() > spent
    assert again.steps < 30
    finish(again)
    assert again.epsilon() <= 4.0
    (first, *_) = released().entries
    assert sum(count for event, count in again.ledger.entries if event == first[0]) == 2


def test_the_ledger_of_the_data_set_pays_for_them_too(tmp_path):
    ledger = tmp_path / "data.json"
    adamas.DataLedger.create(ledger, epsilon=50.0, delta=1e-3)
    run = make_run(spent=released(), data_ledger=ledger)
    finish(run)
    assert adamas.DataLedger(ledger).epsilon() == pytest.approx(run.epsilon(), rel=1e-6)
