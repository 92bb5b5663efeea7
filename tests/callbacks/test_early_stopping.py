"""A run stops when its score no longer rises."""

import pytest
import torch
from torch import nn

from adamas.callbacks import EarlyStopping
from adamas.check import check
from tests.support.small_runs import finish, make_model, make_run


def scoring(values):
    values = iter(values)
    return lambda model: next(values)


def test_a_run_stops_after_as_many_evaluations_without_gain():
    stopping = EarlyStopping(scoring([0.1, 0.5, 0.4, 0.5, 0.9]), patience=2, every=1)
    run = make_run(callbacks=[stopping])
    finish(run)
    assert run.steps_done == 4
    assert stopping.scores == [(1, 0.1), (2, 0.5), (3, 0.4), (4, 0.5)]


def test_by_default_each_epoch_is_evaluated():
    stopping = EarlyStopping(scoring([0.1, 0.2, 0.3]), patience=1)
    finish(make_run(steps=12, callbacks=[stopping]))  # an epoch has five steps
    assert [step for step, _ in stopping.scores] == [5, 10]


def test_a_small_gain_does_not_count():
    run = make_run(callbacks=[EarlyStopping(scoring([0.1, 0.15, 0.19]), patience=2, every=1, least_gain=0.1)])
    finish(run)
    assert run.steps_done == 3


def test_the_score_sees_the_average_in_evaluation_mode_and_modes_are_restored():
    model = nn.Sequential(make_model(), nn.Dropout(0.1))
    model[0].eval()
    seen = []

    def score(scored):
        seen.append((scored, any(m.training for m in scored.modules()), torch.is_grad_enabled()))
        return 0.0

    run = make_run(model, ema=0.9, steps=1, callbacks=[EarlyStopping(score, every=1)])
    before = [m.training for m in run.ema_model.modules()]
    finish(run)
    assert seen == [(run.ema_model, False, False)]
    assert [m.training for m in run.ema_model.modules()] == before
    assert [model.training, model[0].training, model[1].training] == [True, False, True]


@pytest.mark.parametrize(
    ("options", "text"),
    [({"patience": 0}, "patience=0"), ({"every": 0}, "every=0"), ({"least_gain": -1.0}, "least_gain=-1.0")],
)
def test_bad_settings_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        EarlyStopping(lambda model: 0.0, **options)


def test_a_score_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="NaN"):
        finish(make_run(callbacks=[EarlyStopping(lambda model: float("nan"), every=1)]))


def test_checks_of_a_run_do_not_call_its_callbacks():
    called = []

    def made():
        return make_run(callbacks=[lambda run, step: called.append(step.number)], steps=2)

    check(made)
    assert called == []
    finish(made())
    assert called == [1, 2]
