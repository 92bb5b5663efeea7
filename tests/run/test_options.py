"""Options of a run: each is declared once, and checked before the model is."""

import inspect
from dataclasses import FrozenInstanceError, asdict, fields

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, ReduceLROnPlateau

import adamas
from adamas import rules
from adamas.run.options import RunOptions, TrainingOptions
from tests.support.small_runs import finish, make_model, make_run
from tests.support.stopped_runs import stopped

BASE = {"batch_size": 10, "delta": 1e-3, "steps": 3, "noise_multiplier": 1.0}


# --- one list of options --------------------------------------------------------------------------------


def test_make_private_takes_every_option_with_its_default_and_no_other():
    parameters = list(inspect.signature(adamas.make_private).parameters.values())
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    required = inspect.Parameter.empty
    options = {
        one.name: required if one.name in ("batch_size", "delta") else one.default
        for one in fields(RunOptions)
    }
    assert keywords == options


def test_make_private_explains_every_option():
    text = inspect.getdoc(adamas.make_private)
    for one in fields(RunOptions):
        assert f"\n    {one.name}: " in text, one.name


def test_options_that_decide_the_result_are_plain_data():
    values = asdict(TrainingOptions(batch_size=10, delta=1e-3))
    assert all(value is None or isinstance(value, bool | int | float | str) for value in values.values())


def test_options_are_immutable():
    with pytest.raises(FrozenInstanceError):
        RunOptions(**BASE).delta = 0.5


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0"),
        ({"epochs": 2}, ValueError, "epochs and steps"),
        ({"epsilon": 1.0}, ValueError, "epsilon and noise_multiplier"),
        ({"noise_multiplier": None}, ValueError, "got neither"),
        ({"delta": 1.0}, ValueError, "delta=1.0"),
        ({"clip_norm": float("inf")}, ValueError, "clip_norm"),
        ({"engine": "fast"}, ValueError, "engine='fast'"),
        ({"accountant": "moments"}, ValueError, "accountant="),
        ({"noise": "none"}, ValueError, "noise='none'"),
        ({"sampling": "all"}, ValueError, "sampling='all'"),
        ({"max_batch_size": 20}, ValueError, "truncated-poisson"),
        ({"raw": 1}, TypeError, "raw=1"),
        ({"ema": "0.9"}, TypeError, "ema='0.9'"),
        ({"ema": 1.0}, ValueError, "ema=1.0"),
        ({"checkpoint_every": 2}, ValueError, "checkpoint"),
        ({"resume": True}, ValueError, "resume=True"),
        ({"scheduler": "cosine"}, TypeError, "scheduler='cosine'"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(change, error, text):
    with pytest.raises(error, match=text):
        RunOptions(**BASE | change)
    with pytest.raises(error, match=text):
        make_run(**BASE | change)


# --- schedulers that receive the number of steps ----------------------------------------------------------


def rates(run, rule):
    return [rule.param_groups[0]["lr"] for _ in run]


def test_a_scheduler_function_receives_the_rule_and_the_number_of_steps():
    model, received = make_model(), []
    rule = rules.SGD(model.parameters(), lr=1.0)

    def falling(optimizer, steps):
        received.append((optimizer, steps))
        return LambdaLR(optimizer, lambda step: 1 - step / steps)

    run = make_run(model, rule, scheduler=falling, steps=4)
    assert received == [(rule, 4)]
    assert rates(run, rule) == [0.75, 0.5, 0.25, 0.0]


def test_a_scheduler_function_receives_the_steps_that_the_budget_allows():
    received = []

    def constant(optimizer, steps):
        received.append(steps)
        return LambdaLR(optimizer, lambda step: 1.0)

    run = make_run(steps=1000, noise_multiplier=1.0, max_epsilon=3.0, scheduler=constant)
    assert received == [run.steps]
    assert run.steps < 1000


def test_a_scheduler_class_of_torch_can_be_given():
    weights = []
    for made in (CosineAnnealingLR, lambda rule, steps: CosineAnnealingLR(rule, T_max=6), None):
        model = make_model()
        rule = rules.SGD(model.parameters(), lr=1.0)
        scheduler = CosineAnnealingLR(rule, T_max=6) if made is None else made
        weights.append(finish(make_run(model, rule, scheduler=scheduler, steps=6)))
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
    torch.testing.assert_close(weights[0], weights[2], rtol=0, atol=0)


def test_a_scheduler_continues_in_a_resumed_run(tmp_path):
    def made(**options):
        model = make_model()
        rule = rules.SGD(model.parameters(), lr=1.0)
        return make_run(model, rule, scheduler=CosineAnnealingLR, steps=6, **options), rule

    whole, rule = made()
    expected = rates(whole, rule)
    kept = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 1}
    stopped(made(**kept)[0], 4)
    run, rule = made(**kept, resume=True)
    assert run.steps_done == 3
    assert rates(run, rule) == expected[3:]


@pytest.mark.parametrize(
    ("scheduler", "error", "text"),
    [
        (lambda rule, steps: None, TypeError, "return a learning-rate scheduler.*got NoneType"),
        (lambda rule, steps: ReduceLROnPlateau(rule), TypeError, "ReduceLROnPlateau"),
        (
            lambda rule, steps: ExponentialLR(torch.optim.SGD(make_model().parameters()), 0.9),
            ValueError,
            "built on the rule",
        ),
        (0.9, TypeError, "scheduler=0.9"),
    ],
)
def test_a_scheduler_that_cannot_be_stepped_is_refused(scheduler, error, text):
    with pytest.raises(error, match=text):
        make_run(scheduler=scheduler)
