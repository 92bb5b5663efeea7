"""A rule steps on a fresh release only: any other step is refused and changes nothing."""

import pytest
import torch
from torch import nn

from adamas import PrivateGradient
from adamas.rules import RULES
from tests.support.rule_setups import every_rule
from tests.support.rule_steps import assert_same, make_rule, snapshot, step


@pytest.fixture(params=list(RULES))
def running(request):
    """Steps a rule twice; returns it with its parameter and a third release."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(4).double())
    rule = make_rule(request.param, [p])
    made = [PrivateGradient({p: torch.randn(4).double()}, {p: 0.1}) for _ in range(3)]
    for first in made[:2]:
        step(rule, first)
    return rule, p, made[2]


def test_a_step_before_any_release_is_refused():
    for rule in RULES.values():
        p = nn.Parameter(torch.zeros(2))
        p.grad = torch.ones(2)  # as after loss.backward()
        with pytest.raises(RuntimeError, match="release"):
            rule([p]).step()
        assert p.tolist() == [0.0, 0.0]


def test_a_second_step_on_one_release_is_refused_and_changes_nothing(running):
    rule, _, made = running
    step(rule, made)
    before = snapshot(rule)
    with pytest.raises(RuntimeError, match="release"):
        rule.step()
    assert_same(snapshot(rule), before)


def test_a_step_after_zero_grad_is_refused_and_changes_nothing(running):
    rule, _, made = running
    made.write_to(rule)
    rule.zero_grad()
    before = snapshot(rule)
    with pytest.raises(RuntimeError, match="zero_grad"):
        rule.step()
    assert_same(snapshot(rule), before)
    step(rule, made)  # the remedy that the message names


@every_rule
def test_a_step_after_a_raw_gradient_was_added_is_refused(name):
    p = nn.Parameter(torch.ones(2).double())
    rule = make_rule(name, [p])
    PrivateGradient({p: torch.ones(2).double()}, {p: 0.1}).write_to(rule)
    p.square().sum().backward()  # as in a non-private loop
    with pytest.raises(RuntimeError, match="release"):
        rule.step()
    assert p.tolist() == [1.0, 1.0]


def test_zero_grad_before_the_release_does_not_prevent_the_step(running):
    rule, p, made = running
    before = p.detach().clone()
    rule.zero_grad()
    step(rule, made)
    assert not torch.equal(p, before)


def test_a_closure_that_writes_the_release_is_called_before_the_step(running):
    rule, p, made = running
    before, calls = p.detach().clone(), []

    def closure():
        assert torch.is_grad_enabled()
        calls.append(len(calls))
        made.write_to(rule)
        return "result"

    assert rule.step(closure) == "result"
    assert calls == [0]
    assert not torch.equal(p, before)


def test_a_closure_without_a_release_makes_no_step(running):
    rule, _, _ = running
    before = snapshot(rule)
    with pytest.raises(RuntimeError, match="release"):
        rule.step(lambda: 0.0)
    assert_same(snapshot(rule), before)


def test_a_closure_that_adds_a_gradient_to_the_release_makes_no_step(running):
    rule, p, made = running
    made.write_to(rule)
    before = p.detach().clone()
    with pytest.raises(RuntimeError, match="not the release's any more"):
        rule.step(lambda: p.sum().backward())
    assert torch.equal(p, before)


def test_a_release_for_other_parameters_is_refused(running):
    rule, p, made = running
    other = nn.Parameter(torch.zeros(4).double())
    before, gradient = snapshot(rule), p.grad
    mean, variance = dict(made.mean), dict(made.noise_variance)
    for wrong in (
        PrivateGradient({other: mean[p]}, {other: 0.1}),
        PrivateGradient(mean | {other: mean[p]}, variance | {other: 0.1}),
        PrivateGradient({}, {}),
    ):
        with pytest.raises(ValueError, match="release"):
            wrong.write_to(rule)
        with pytest.raises(RuntimeError, match="release"):
            rule.step()
    assert other.grad is None
    assert p.grad is gradient
    assert_same(snapshot(rule), before)


def test_a_rule_does_not_change_the_release(running):
    rule, p, made = running
    mean = made.mean[p].clone()
    step(rule, made)
    assert torch.equal(made.mean[p], mean)
