"""The rule of a run: it shapes the clipping, has a scheduler, and can be replaced."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from adamas import Geometry, rules
from tests.support.small_runs import finish, make_model, make_run
from tests.support.stopped_runs import parameters, stopped


def test_scheduler_and_averaged_weights_follow_the_steps():
    model = make_model()
    rule = rules.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(rule, gamma=0.5)
    average = AveragedModel(model)
    run = make_run(model, rule, scheduler=scheduler, ema=average)
    seen = [parameters(run) for _ in run]
    assert scheduler.get_last_lr() == [0.5**6]
    mean = torch.stack(seen).mean(0)
    ours = torch.nn.utils.parameters_to_vector(run.ema_model.module.parameters())
    torch.testing.assert_close(ours, mean)


def test_a_rule_shapes_the_clipping_of_the_next_step():
    class Centered(rules.Rule):
        """Centers the clipping at the last release, with a scale of 2."""

        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def geometry(self):
            center = {p: self.state[p]["last"] for p in self.trainable() if "last" in self.state[p]}
            return Geometry(center, dict.fromkeys(self.trainable(), 2.0))

        def _update(self, p, gradient, noise_variance, group, state):
            state["last"] = gradient.clone()
            p.add_(gradient, alpha=-group["lr"])

    model = make_model()
    rule = Centered(model.parameters())
    run = make_run(model, rule, clip_norm=0.5, noise_multiplier=3.0)
    releases = [step.release for step in run]
    for variance in releases[-1].noise_variance.values():
        assert variance == pytest.approx((2.0 * 0.5 * 3.0 / 12) ** 2)
    assert rule.geometry().center.keys() == set(model.parameters())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (torch.optim.LBFGS, "one gradient per step, got LBFGS"),
        (torch.optim.SparseAdam, "dense gradients, got SparseAdam"),
    ],
)
def test_an_optimizer_that_cannot_step_on_a_release_is_refused(kind, reason):
    model = make_model()
    with pytest.raises(TypeError, match=reason):
        make_run(model, kind(model.parameters()))


def test_a_model_without_trainable_parameters_is_refused():
    model = make_model().requires_grad_(False)
    with pytest.raises(ValueError, match="trainable parameter"):
        make_run(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_make_private_refuses_a_rule_of_other_parameters_and_names_one():
    model, other = make_model(), make_model()
    with pytest.raises(ValueError, match=r"'0.weight'"):
        make_run(model, rules.SGD(other.parameters()))
    with pytest.raises(ValueError, match=r"'2.weight'"):
        make_run(model, rules.SGD(model[0].parameters()))
    with pytest.raises(ValueError, match="2 more"):
        make_run(model, rules.SGD([*model.parameters(), *other[0].parameters()]))


def test_a_new_rule_takes_over_within_the_same_budget():
    run = stopped(make_run(epsilon=2.0, noise_multiplier=None), 3)
    run.rule = rules.AdamBC(run.model.parameters())
    finish(run)
    assert run.steps_done == 6
    assert run.epsilon() <= 2.0
    assert run.rule.state[run.rule.trainable()[0]]["step"] == 3


def test_a_new_rule_of_other_parameters_is_refused():
    run = make_run()
    with pytest.raises(ValueError, match="hold the model's"):
        run.rule = rules.Adam(make_model().parameters())
    with pytest.raises(ValueError, match="hold the model's"):
        run.rule = rules.Adam(list(run.model.parameters())[:1])
    finish(run)


def test_a_scheduler_of_the_old_rule_is_refused():
    model = make_model()
    rule = rules.Adam(model.parameters(), lr=0.01)
    run = make_run(model, rule, scheduler=torch.optim.lr_scheduler.ExponentialLR(rule, 0.9))
    new = rules.SGD(model.parameters())
    with pytest.raises(ValueError, match="scheduler"):
        run.rule = new
    run.scheduler = None
    run.rule = new
    finish(run)


def test_a_parameter_added_during_a_run_is_refused():
    run = make_run()
    next(iter(run))
    spent = run.epsilon()
    run.model.register_parameter("extra", nn.Parameter(torch.zeros(1)))
    with pytest.raises(ValueError, match="extra"):
        next(iter(run))
    assert run.epsilon() == spent
