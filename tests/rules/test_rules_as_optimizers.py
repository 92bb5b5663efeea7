"""Every rule is a torch optimizer: groups, schedulers, and parameters of any shape, dtype and strides."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from adamas import PrivateGradient
from tests.support.rule_setups import every_rule, every_setup
from tests.support.rule_steps import STEPS, make_rule, parameters, problem, release, releases, step


@every_setup
def test_groups_have_their_own_learning_rate(setup):
    starts, _, _ = problem("constant")
    params = parameters(starts)
    first, *others = params
    rule = setup.make([{"params": [first], "lr": 0.02}, {"params": others}], lr=0.2)
    twins = parameters(starts)
    slow, fast = setup.make(twins[:1], lr=0.02), setup.make(twins[1:], lr=0.2)
    _, gradients, variances = problem("constant")
    for t in range(10):
        g, v = [x[t] for x in gradients], [x[t] for x in variances]
        step(rule, release(params, g, v))
        step(slow, release(twins[:1], g[:1], v[:1]))
        step(fast, release(twins[1:], g[1:], v[1:]))
    for p, twin in zip(params, twins, strict=True):
        assert torch.equal(p, twin)


@every_rule
def test_named_parameters_and_generators_are_accepted(name):
    model = nn.Linear(2, 2)
    assert len(make_rule(name, model.parameters()).trainable()) == 2
    assert len(make_rule(name, model.named_parameters()).trainable()) == 2


@every_rule
def test_an_added_group_starts_from_scratch(name):
    starts, gradients, variances = problem("constant")
    params = parameters(starts)
    rule = make_rule(name, params[:1], lr=0.1)
    for t in range(5):
        step(rule, release(params[:1], [gradients[0][t]], [variances[0][t]]))
    rule.add_param_group({"params": params[1:], "lr": 0.01})
    with pytest.raises(ValueError, match="release"):
        release(params[:1], [gradients[0][5]], [variances[0][5]]).write_to(rule)
    twins = parameters(starts)
    fresh = make_rule(name, twins[1:], lr=0.01)
    for t in range(5):
        g, v = [x[t] for x in gradients], [x[t] for x in variances]
        step(rule, release(params, g, v))
        step(fresh, release(twins[1:], g[1:], v[1:]))
    for p, twin in zip(params[1:], twins[1:], strict=True):
        assert torch.equal(p, twin)


SCHEDULERS = {
    "cosine": lambda rule: lr_scheduler.CosineAnnealingLR(rule, T_max=STEPS),
    "one cycle": lambda rule: lr_scheduler.OneCycleLR(
        rule, max_lr=0.3, total_steps=STEPS + 1, cycle_momentum=False
    ),
    "steps": lambda rule: lr_scheduler.StepLR(rule, 7, gamma=0.5),
    "warm-up": lambda rule: lr_scheduler.LambdaLR(rule, lambda t: min(1.0, (t + 1) / 10)),
    "sequence": lambda rule: lr_scheduler.SequentialLR(
        rule,
        [lr_scheduler.LinearLR(rule, 0.1, total_iters=5), lr_scheduler.ExponentialLR(rule, 0.9)],
        milestones=[5],
    ),
}


@pytest.mark.slow
@every_setup
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_set_the_learning_rate_of_each_step(setup, scheduler):
    starts, gradients, variances = problem("constant")
    params = parameters(starts)
    rule = setup.make(params)
    schedule = SCHEDULERS[scheduler](rule)
    rates = []
    for made in releases(params):
        rates.append(rule.param_groups[0]["lr"])
        step(rule, made)
        schedule.step()
    assert len(set(rates)) > 3
    for p, start, g, v in zip(params, starts, gradients, variances, strict=True):
        theta = setup.reference(start, g, rates, v)[-1]
        np.testing.assert_allclose(p.detach().numpy(), theta, rtol=1e-11, atol=1e-11)


@every_rule
def test_a_one_cycle_schedule_changes_the_momentum(name):
    starts, _, _ = problem("constant")
    params = parameters(starts)
    rule = make_rule(name, params, lr=0.01)
    schedule = lr_scheduler.OneCycleLR(rule, max_lr=0.1, total_steps=STEPS + 1)
    momenta = set()
    for made in releases(params):
        group = rule.param_groups[0]
        momenta.add(group["betas"][0] if "betas" in group else group["momentum"])
        step(rule, made)
        schedule.step()
    assert len(momenta) > 10
    assert all(p.isfinite().all() for p in params)


@every_rule
def test_frozen_parameters_do_not_move(name):
    starts, gradients, variances = problem("constant")
    params = parameters(starts)
    params[1].requires_grad_(False)
    rule = make_rule(name, params, lr=0.1)
    active = [params[0], params[2]]
    assert rule.trainable() == active
    assert set(rule.geometry().scale) == set(active)
    for t in range(3):
        step(rule, release(active, [gradients[i][t] for i in (0, 2)], [variances[i][t] for i in (0, 2)]))
    assert torch.equal(params[1], torch.tensor(starts[1]))
    assert params[1] not in rule.state
    assert not torch.equal(params[0], torch.tensor(starts[0]))


@every_setup
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_scalar_and_empty_parameters_are_stepped(setup, dtype):
    scalar, empty = nn.Parameter(torch.tensor(1.0, dtype=dtype)), nn.Parameter(torch.zeros(0, 3, dtype=dtype))
    rule = setup.make([scalar, empty])
    for variance in (0.1, 0.0):
        for like in (float, lambda v: torch.tensor(v, dtype=torch.float32)):
            step(
                rule,
                PrivateGradient(
                    {scalar: torch.tensor(0.5), empty: torch.zeros(0, 3)},
                    {scalar: like(variance), empty: like(variance)},
                ),
            )
    assert scalar.shape == ()
    assert scalar.isfinite()
    assert scalar.item() < 1
    assert empty.shape == (0, 3)


@every_rule
def test_an_empty_parameter_takes_a_variance_per_coordinate(name):
    empty = nn.Parameter(torch.zeros(0, 3))
    rule = make_rule(name, [empty])
    step(rule, PrivateGradient({empty: torch.zeros(0, 3)}, {empty: torch.zeros(0, 3)}))
    assert empty.shape == (0, 3)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_zero_gradient_without_noise_moves_nothing(name, dtype):
    p = nn.Parameter(torch.zeros(2, dtype=dtype))
    rule = make_rule(name, [p], lr=0.1)
    for _ in range(3):
        step(rule, PrivateGradient({p: torch.zeros(2)}, {p: 0.0}))
    assert p.tolist() == [0.0, 0.0]


@every_rule
@pytest.mark.parametrize("kind", ["transposed", "expanded"])
def test_a_gradient_may_have_any_strides(name, kind):
    starts = [np.arange(12.0).reshape(3, 4)]
    (p,), (twin,) = parameters(starts), parameters(starts)
    rule, other = make_rule(name, [p], lr=0.1), make_rule(name, [twin], lr=0.1)
    for scale in (1.0, 2.0, 3.0):
        base = torch.arange(12.0).double().reshape(4, 3) - 5.5
        g = scale * (base.t() if kind == "transposed" else torch.tensor([[1.0], [-2.0], [3.0]]).expand(3, 4))
        g = g.expand(3, 4) if kind == "expanded" else g
        step(rule, PrivateGradient({p: g.double()}, {p: 0.1}))
        step(other, PrivateGradient({twin: g.double().contiguous()}, {twin: 0.1}))
    torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)


@every_rule
def test_a_variance_may_change_between_number_and_tensor(name):
    p, twin = nn.Parameter(torch.zeros(3).double()), nn.Parameter(torch.zeros(3).double())
    rule, other = make_rule(name, [p]), make_rule(name, [twin])
    for variance in (torch.tensor(0.2, dtype=torch.float64), torch.full((3,), 0.2, dtype=torch.float64), 0.2):
        step(rule, PrivateGradient({p: torch.ones(3).double()}, {p: variance}))
        step(other, PrivateGradient({twin: torch.ones(3).double()}, {twin: 0.2}))
    torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)
