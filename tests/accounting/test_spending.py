"""Every release is charged, and none is made beyond the plan or the budget."""

import copy
import json

import pytest
import torch

import adamas
from adamas import rules
from adamas.accounting import Plan, Spending
from adamas.sampling import Poisson
from tests.support.small_runs import finish, make_model, make_run
from tests.support.stopped_runs import stopped


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


def test_a_batch_after_a_save_does_not_join_the_event_of_an_earlier_batch(tmp_path):
    """Without a seed a resumed run draws different batches, and one event cannot describe two batches."""
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
def test_the_plan_cannot_be_changed_from_outside(change):
    run = make_run(noise_multiplier=None, epsilon=1.0, accountant="rdp")
    with pytest.raises(AttributeError):
        change(run)


def test_batches_beyond_the_plan_are_refused():
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


def test_a_noise_multiplier_other_than_the_planned_one_is_refused():
    spending = Spending(Poisson(100, 10), Plan(5, 1.0, 3.0), delta=1e-5, accountant="rdp")
    with pytest.raises(ValueError, match="noise multiplier of the plan"):
        spending.charge(0, [0.3])
    assert spending.ledger.entries == []


@pytest.mark.slow
def test_the_budget_counts_extra_releases_before_a_save(tmp_path):
    """The budget no longer covers the whole plan, so the resumed run stops early."""
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


def test_steps_that_differ_from_those_of_a_dead_run_do_not_exceed_its_spent_budget(tmp_path):
    """The run died at its end, with its budget spent. Equal steps may be repeated, different ones may not."""
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
    assert other.steps_done == 1  # the first release does not depend on the learning rate
    assert other.epsilon() <= 2.0
    third = adamas.load(file, make_run(**arguments))
    assert torch.equal(finish(third), expected)
    assert third.epsilon() <= 2.0


def test_a_rule_state_from_elsewhere_is_refused():
    model = make_model()
    rule = rules.Adam(model.parameters(), lr=0.01)
    finish(make_run(model, rule, steps=12))
    state = copy.deepcopy(rule.state_dict())
    restored = rules.Adam(model.parameters(), lr=0.01)
    restored.load_state_dict(state)
    with pytest.raises(ValueError, match="made no step"):
        make_run(model, restored)
    finish(make_run(model, rule, seed=8))  # a second run in this process has its own epsilon
    fresh = rules.Adam(model.parameters(), lr=0.01)
    run = make_run(model, fresh)
    fresh.load_state_dict(state)  # like a trainer that restores model and optimizer
    with pytest.raises(RuntimeError, match=r"adamas\.load"):
        finish(run)
    assert run.ledger.entries == []


def test_a_state_loaded_into_a_torch_optimizer_is_refused():
    model = make_model()
    rule = torch.optim.Adam(model.parameters())
    run = make_run(model, rule)
    other = torch.optim.Adam(make_model().parameters())
    rule.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match=r"adamas\.load"):
        finish(run)


def test_the_spending_in_a_state_dict_is_plain_data():
    run = stopped(make_run(), 2)
    assert json.loads(json.dumps(run.state_dict()["spending"])) == run.state_dict()["spending"]
