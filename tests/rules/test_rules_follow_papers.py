"""Every rule takes the steps of its paper and, without noise, those of its parent in torch.optim."""

import math

import numpy as np
import pytest
import torch

from adamas.rules import RULES
from tests.reference import adam_family
from tests.support.rule_setups import SETUPS, WITH_PARENT, every_setup
from tests.support.rule_steps import STEPS, VARIANCES, make_rule, parameters, problem, release, releases, step


def test_every_rule_has_a_reference():
    missing = set(RULES) - {setup.rule for setup in SETUPS}
    assert not missing, f"add a Setup with a reference from tests/reference for {sorted(missing)}"


def test_every_rule_has_a_parent():
    missing = set(RULES) - {setup.rule for setup in WITH_PARENT}
    assert not missing, f"add a Setup with a torch.optim parent for {sorted(missing)}"


@every_setup
@pytest.mark.parametrize("kind", VARIANCES)
def test_fifty_noisy_steps_match_the_paper(setup, kind):
    starts, gradients, variances = problem(kind)
    params = parameters(starts)
    rates = [0.1 / (1 + 0.05 * t) for t in range(STEPS)]
    expected = [
        setup.reference(start, g, rates, v) for start, g, v in zip(starts, gradients, variances, strict=True)
    ]
    rule = setup.make(params)
    for t, made in enumerate(releases(params, kind)):
        rule.param_groups[0]["lr"] = rates[t]
        step(rule, made)
        for p, trajectory in zip(params, expected, strict=True):
            theta = trajectory[t]
            off = np.abs(p.detach().numpy() - theta).max() / np.abs(theta).max()
            assert off <= 1e-12, f"step {t + 1}: off by {off:.1e}"


@pytest.mark.parametrize("name", ["adam-bc", "adamw-bc"])
@pytest.mark.parametrize("variance", [0.3, 1e-8])
def test_a_constant_noise_variance_is_subtracted_as_the_papers_phi(name, variance):
    # The rule averages variances with the decay of v; the reference subtracts the constant itself.
    starts, gradients, _ = problem("constant")
    params = parameters(starts)
    rule = make_rule(name, params, lr=0.1, floor=0.1 * variance)
    options = {"lam": rule.param_groups[0]["weight_decay"], "floor": 0.1 * variance}
    scale = math.sqrt(variance / 0.3)
    expected = [
        adam_family.adam_bc(start, [scale * x for x in g], [0.1] * STEPS, [variance] * STEPS, **options)
        for start, g in zip(starts, gradients, strict=True)
    ]
    for t in range(STEPS):
        step(rule, release(params, [scale * g[t] for g in gradients], [np.float64(variance)] * 3))
        for p, trajectory in zip(params, expected, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), trajectory[t], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("setup", WITH_PARENT, ids=str)
def test_without_noise_a_rule_equals_its_torch_parent(setup):
    starts, gradients, _ = problem("zero")
    params, twins = parameters(starts), parameters(starts)
    rule, parent = setup.make(params, lr=0.05), setup.parent(twins, 0.05)
    for t, made in enumerate(releases(params, "zero")):
        step(rule, made)
        for twin, g in zip(twins, gradients, strict=True):
            twin.grad = torch.tensor(g[t])
        parent.step()
        for p, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)
