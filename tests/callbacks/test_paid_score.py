"""A paid score costs what its ledger says, and no example has influence on the answer for another."""

import random
import threading

import dp_accounting
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import adamas
from adamas.callbacks import EarlyStopping, PaidScore
from adamas.errors import BudgetError, UnsupportedError
from adamas.queries import noisy_counts
from tests.support.small_runs import finish, make_data, make_model, make_run


def right(model, batch):
    x, y = batch
    return model(x).argmax(1) == y


def paid(data=None, right=right, **changes):
    options = {"epsilon": 1.0, "delta": 1e-4, "evaluations": 3, "seed": 0} | changes
    return PaidScore(right, data or make_data(n=40), **options)


def test_a_paid_score_is_the_accuracy_with_the_noise_of_its_ledger():
    model, data = make_model(), make_data(n=40)
    exact = int(right(model, data.tensors).sum())
    scores = paid(data, epsilon=1000.0)
    assert abs(round(scores(model) * 40) - exact) <= 4 * scores.noise_multiplier + 1
    assert scores.ledger.entries == [(dp_accounting.GaussianDpEvent(scores.noise_multiplier), 1)]


def test_all_evaluations_keep_the_budget_and_one_more_is_refused():
    score = paid()
    for _ in range(3):
        assert 0 <= score(make_model()) <= 1
    assert 0.98 < score.ledger.epsilon(1e-4) <= 1.0
    with pytest.raises(BudgetError, match="3 evaluations"):
        score(make_model())
    assert score.ledger.entries[0][1] == 3


def test_one_record_moves_the_count_by_at_most_one_even_in_a_model_that_mixes():
    """Batch statistics would let one record change the answers for all others, if it saw several at once."""

    def mixing(model, batch):
        x, _ = batch
        return (x - x.mean(0)).sum(1) >= 0

    data = TensorDataset(torch.tensor([[1.0], [2.0], [3.0], [1000.0]]), torch.zeros(4))
    for left_out in range(4):
        rows = [i for i in range(4) if i != left_out]
        less = TensorDataset(data.tensors[0][rows], data.tensors[1][rows])
        counts = [paid(one, mixing)._count(make_model()) for one in (data, less)]
        assert counts[0] - counts[1] in (0, 1)


def test_a_model_that_remembers_examples_is_refused():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = torch.zeros(1)

        def forward(self, x):
            self.seen = self.seen + x.sum()
            return x + self.seen

    with pytest.raises(UnsupportedError, match="seen"):
        paid(right=lambda model, batch: model(batch[0]).sum(1) > 0)(Remembering())


def test_what_one_example_draws_changes_nothing_for_the_next():
    data = TensorDataset(torch.arange(6.0)[:, None], torch.zeros(6))
    model = make_model()

    def drawing(model, batch):
        answer = torch.rand(1) > 0.5
        torch.rand(int(batch[0]) + 1)
        return answer

    before = torch.get_rng_state()
    assert paid(data, drawing)._count(model) in (0, 6)
    assert torch.equal(before, torch.get_rng_state())


class Jittered(Dataset):
    """Adds noise to each example when it is read, as augmentation does."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 6

    def __getitem__(self, place):
        return torch.tensor([float(place)]), torch.tensor([self.draw()])


DRAWS = {
    "python": lambda: random.random(),
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand(())),
}


@pytest.mark.parametrize("generator", DRAWS)
def test_what_one_example_draws_changes_nothing_for_reading_the_next(generator):
    def drawing(model, batch):
        for _ in range(int(batch[0]) + 1):
            random.random(), np.random.rand(), torch.rand(())
        return batch[1][:, 0] > 0.5

    before = random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()
    assert paid(Jittered(DRAWS[generator]), drawing)._count(make_model()) in (0, 6)
    assert before == (random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist())


@pytest.mark.parametrize("answer", [1.0, torch.tensor([0.5]), torch.tensor([True, True])])
def test_an_answer_that_is_not_one_truth_value_is_refused_without_showing_it(answer):
    with pytest.raises(TypeError, match="one True or False") as error:
        paid(right=lambda model, batch: answer)(make_model())
    assert "0.5" not in str(error.value)


def test_a_delta_that_would_allow_to_publish_a_record_is_refused():
    with pytest.raises(ValueError, match="1/N"):
        paid(delta=0.1)


def test_a_run_stops_by_a_paid_score():
    score = paid(evaluations=6)
    run = make_run(callbacks=[EarlyStopping(score, patience=1, every=2)])
    finish(run)
    assert score.ledger.entries
    assert run.steps_done in (4, 6)


@pytest.mark.parametrize(("every", "asked"), [(2, 6), (None, 2)])
def test_too_few_evaluations_are_refused_before_the_first_release(every, asked):
    """An epoch has five steps."""
    score = paid(evaluations=asked - 1)
    run = make_run(steps=12, callbacks=[EarlyStopping(score, patience=99, every=every)])
    with pytest.raises(
        BudgetError, match=rf": {asked} evaluations in 12 .* {asked - 1} of evaluations={asked - 1} "
    ):
        finish(run)
    assert not run.steps_done
    assert not run.ledger.entries
    enough = paid(evaluations=asked)
    run = make_run(steps=12, callbacks=[EarlyStopping(enough, patience=99, every=every)])
    for step in run:
        if step.number == 7:
            break
    finish(run)  # what the first loop has asked for is not asked for again
    assert (run.steps_done, enough.left) == (12, 0)


def test_callbacks_that_share_a_score_pay_together():
    score = paid(evaluations=3)
    stopping = [EarlyStopping(score, patience=99, every=every) for every in (4, 2)]
    with pytest.raises(BudgetError, match=": 4 evaluations in 6 steps"):
        finish(make_run(steps=6, callbacks=stopping))


def test_a_run_that_is_extended_needs_evaluations_for_the_new_steps():
    score = paid(evaluations=5)
    run = make_run(steps=6, callbacks=[EarlyStopping(score, patience=99, every=2)])
    finish(run)
    run.extend(steps=4, noise_multiplier=1.0)
    finish(run)
    assert (run.steps_done, score.left) == (10, 0)
    run.extend(steps=2, noise_multiplier=1.0)
    with pytest.raises(BudgetError, match=r": 1 evaluations in 2 .* 0 of evaluations=5 "):
        finish(run)
    assert run.steps_done == 10


def test_a_run_that_resumes_needs_evaluations_for_the_steps_that_are_left(tmp_path):
    file, ledger = tmp_path / "run.safetensors", ledger_of(tmp_path, epsilon=9.0)

    def run(evaluations):
        score = paid(seed=None, data_ledger=ledger.path, evaluations=evaluations)
        return make_run(steps=9, callbacks=[EarlyStopping(score, every=1, patience=99)])

    first = run(9)
    for step in first:
        if step.number == 3:
            break
    first.save(file)
    other = run(6)
    adamas.load(file, other)
    finish(other)
    assert other.steps_done == 9


# --- budgets that others share or repeat --------------------------------------------------------------


def always(model, batch):
    return torch.ones(1, dtype=torch.bool)


def ledger_of(folder, epsilon=1.0):
    return adamas.DataLedger.create(folder / "validation.ledger", epsilon=epsilon, delta=1e-4)


def test_a_run_that_resumes_cannot_spend_a_validation_budget_anew(tmp_path):
    file = tmp_path / "run.safetensors"
    run = make_run(callbacks=[EarlyStopping(paid(), every=2, patience=9)])
    for step in run:
        if step.number == 3:
            break
    run.save(file)
    with pytest.raises(ValueError, match=r"PaidScore\(data_ledger=...\)"):
        adamas.load(file, make_run(callbacks=[EarlyStopping(paid(), every=2, patience=9)]))
    with pytest.raises(ValueError, match="data_ledger"):
        adamas.load(file, make_run(callbacks=[paid()]))


def test_all_processes_together_keep_the_validation_budget(tmp_path):
    """The second process stands for a resumed one: it knows only the file."""
    file, ledger = tmp_path / "run.safetensors", ledger_of(tmp_path, epsilon=0.7)
    options = {"seed": None, "data_ledger": ledger.path, "evaluations": 9}
    run = make_run(callbacks=[EarlyStopping(paid(**options), every=1, patience=9)], steps=9)
    for step in run:
        if step.number == 3:
            break
    run.save(file)
    other = make_run(callbacks=[EarlyStopping(paid(**options), every=1, patience=9)], steps=9)
    adamas.load(file, other)
    with pytest.raises(BudgetError, match=r"validation\.ledger"):
        finish(other)
    assert 4 < other.steps_done < 9
    assert 0.6 < ledger.epsilon() <= 0.7


def test_an_evaluation_is_in_the_file_before_its_noise_is_drawn(tmp_path, monkeypatch):
    ledger, seen = ledger_of(tmp_path), []

    def counts(*args, **options):
        seen.append(ledger.epsilon())
        return noisy_counts(*args, **options)

    monkeypatch.setattr("adamas.callbacks.paid_score.noisy_counts", counts)
    paid(seed=None, data_ledger=ledger)(make_model())
    assert seen == [ledger.epsilon()]
    assert seen[0] > 0


def test_a_seed_and_a_file_exclude_each_other(tmp_path):
    with pytest.raises(ValueError, match="seed=3"):
        paid(seed=3, data_ledger=ledger_of(tmp_path))


def test_neighbouring_seeds_share_no_noise():
    """Noise of deviation above 100: of twelve draws, three equal pairs have probability below 1e-3."""
    drawn = []
    for seed in (0, 1, 2):
        score = paid(make_data(n=50_000), always, seed=seed, epsilon=0.05, evaluations=4, delta=1e-5)
        score._count = lambda model: 25_000
        drawn += [score(make_model()) for _ in range(4)]
    assert 100 < score.noise_multiplier < 2000
    assert len(set(drawn)) >= 10


def test_threads_cannot_ask_more_often_than_was_paid_for():
    score, refused = paid(evaluations=1, epsilon=0.5), []

    def ask():
        try:
            score(make_model())
        except BudgetError:
            refused.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ask()
    assert len(refused) == 4
    assert score.ledger.epsilon(1e-4) <= 0.5
