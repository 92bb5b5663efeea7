"""Rules are saved, loaded and copied like torch optimizers, and resume bit for bit."""

import copy

import pytest
import torch
from torch import Tensor, nn

from adamas import PrivateGradient
from adamas.rules import RULES
from tests.support.rule_setups import every_rule, every_setup
from tests.support.rule_steps import (
    STEPS,
    assert_same,
    make_rule,
    parameters,
    problem,
    releases,
    saved_and_loaded,
    snapshot,
    step,
)


@pytest.mark.slow
@every_setup
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["constant", "by step and coordinate", "changing"])
def test_a_resumed_rule_is_bit_equal(setup, dtype, kind):
    starts, _, _ = problem(kind)
    params = parameters(starts, dtype)
    rule = setup.make(params)
    made = releases(params, kind)
    for t in range(20):
        step(rule, made[t])
    state = saved_and_loaded(rule.state_dict())
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = setup.make(twins, lr=123.0)
    resumed.load_state_dict(state)
    assert_same(snapshot(resumed), snapshot(rule))
    theirs = releases(twins, kind)
    for t in range(20, STEPS):
        step(rule, made[t])
        step(resumed, theirs[t])
        for p, twin in zip(params, twins, strict=True):
            assert torch.equal(p, twin)
    assert_same(snapshot(resumed), snapshot(rule))


@every_setup
def test_the_state_of_bfloat16_parameters_is_float32(setup):
    starts, _, _ = problem("constant")
    params = parameters(starts, torch.bfloat16)
    rule = setup.make(params)
    for made in releases(params)[:5]:
        step(rule, made)
    resumed = setup.make([nn.Parameter(p.detach().clone()) for p in params])
    resumed.load_state_dict(saved_and_loaded(rule.state_dict()))
    for built in (rule, resumed):
        for state in built.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    assert value.dtype == torch.float32, name


@every_setup
def test_a_loaded_state_shares_no_memory_with_its_source(setup):
    starts, _, _ = problem("constant")
    params, twins = parameters(starts), parameters(starts)
    rule, other = setup.make(params), setup.make(twins)
    for made in releases(params)[:3]:
        step(rule, made)
    other.load_state_dict(rule.state_dict())
    before = snapshot(rule)
    for made in releases(twins)[3:6]:
        step(other, made)
    assert_same(snapshot(rule), before)


@every_rule
def test_the_state_of_another_rule_is_refused(name):
    p = nn.Parameter(torch.zeros(2).double())
    rule = make_rule(name, [p])
    step(rule, PrivateGradient({p: torch.ones(2).double()}, {p: 0.1}))
    before = snapshot(rule)
    for other in RULES:
        if other != name:
            with pytest.raises(ValueError, match=RULES[other].__name__):
                rule.load_state_dict(make_rule(other, [nn.Parameter(torch.zeros(2))]).state_dict())
    assert_same(snapshot(rule), before)


@every_rule
def test_a_copied_rule_needs_its_own_release(name):
    p = nn.Parameter(torch.zeros(2).double())
    rule = make_rule(name, [p])
    PrivateGradient({p: torch.ones(2).double()}, {p: 0.1}).write_to(rule)
    twin = copy.deepcopy(rule)
    with pytest.raises(RuntimeError, match="release"):
        twin.step()
