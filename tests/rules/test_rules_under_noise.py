"""Rules under noise: convergence, the second moment of Adam, and the floor of its correction."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from adamas import PrivateGradient, rules, theory
from adamas.rules import Rule
from tests.support.rule_setups import every_rule
from tests.support.rule_steps import make_rule, step

# The rules that correct the second moment. Weight decay is off: with it, updates would not show denominators.
CORRECTED: dict[str, Callable[..., Rule]] = {
    "adam-bc": rules.AdamBC,
    "adamw-bc": functools.partial(rules.AdamWBC, weight_decay=0.0),
    "macadam-bc": rules.MacAdamBC,
    "scale-then-privatize": functools.partial(rules.ScaleThenPrivatize, floor="auto"),
}
# Arguments other than lr = 0.03, the size of Adam's first steps.
CONVERGENCE: dict[str, dict[str, Any]] = {"sgd": {"lr": 0.3}}


@pytest.mark.slow
@every_rule
@pytest.mark.parametrize("seed", [0, 1])
def test_noisy_quadratics_are_minimised(name, seed):
    torch.manual_seed(seed)
    d, steps, std = 30, 600, 0.3
    curvature, optimum = torch.logspace(-0.5, 0.5, d).double(), torch.randn(d).double()
    p = nn.Parameter(optimum + 2 * torch.randn(d).double().sign())
    rule = make_rule(name, [p], **({"lr": 0.03} | CONVERGENCE.get(name, {})))
    schedule = lr_scheduler.CosineAnnealingLR(rule, steps)
    for _ in range(steps):
        gradient = curvature * (p.detach() - optimum) + std * torch.randn(d)
        step(rule, PrivateGradient({p: gradient}, {p: std**2}))
        schedule.step()
    # The start is 2 away in each coordinate. The noise alone keeps SGD at 0.05.
    assert float((p.detach() - optimum).abs().mean()) < 0.15


def noise_only(rule_of: Callable[[list[Tensor]], Rule], steps: int, d: int, phi: float) -> dict[str, Tensor]:
    """Steps on pure noise of variance phi; returns the late updates, and moments computed independently."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(d).double())
    rule = rule_of([p])
    m, v = torch.zeros(d).double(), torch.zeros(d).double()
    updates = []
    for t in range(1, steps + 1):
        g = phi**0.5 * torch.randn(d).double()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        before = p.detach().clone()
        step(rule, PrivateGradient({p: g}, {p: phi}))
        if t > steps - 1000 and t % 50 == 0:  # nearly independent: 0.9^50 = 0.005
            updates.append(p.detach() - before)
    return {"updates": torch.stack(updates), "m_hat": m / (1 - 0.9**steps), "v_hat": v / (1 - 0.999**steps)}


def test_on_pure_noise_the_second_moment_of_adam_is_the_noise_variance():
    phi = 0.04
    result = noise_only(lambda p: rules.Adam(p, lr=1.0), steps=5000, d=2000, phi=phi)
    denominator = -result["m_hat"] / result["updates"][-1]
    # v_hat of one coordinate has a standard deviation of sqrt(2 (1-b2)/(1+b2)) = 3.2% of phi, and the mean of
    # 2000 has 0.07%: 0.5% is 7 standard deviations.
    assert float(denominator.square().mean()) == pytest.approx(phi, rel=5e-3)
    assert float(denominator.square().std()) == pytest.approx(phi * (0.002 / 1.999) ** 0.5, rel=0.15)


def test_on_pure_noise_the_updates_of_adam_have_the_standard_deviation_of_momentum():
    result = noise_only(lambda p: rules.Adam(p, lr=1.0), steps=5000, d=2000, phi=0.04)
    # sqrt((1-b1)/(1+b1)) = 0.2294. With 20 x 2000 nearly independent values the estimate has a standard
    # deviation of 0.35%, and the spread of v_hat adds up to 0.1%: 2% is 5 standard deviations, a false alarm
    # in 10^6.
    assert float(result["updates"].std()) == pytest.approx(0.2294, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECTED)
def test_on_pure_noise_half_of_the_corrected_coordinates_lie_on_a_small_floor(name):
    phi, floor = 0.04, 1e-6
    result = noise_only(lambda p: CORRECTED[name](p, lr=1e-9, floor=floor), steps=3000, d=2000, phi=phi)
    denominator = -1e-9 * result["m_hat"] / result["updates"][-1]
    on_floor = (denominator / floor**0.5 - 1).abs() < 1e-6
    # v_hat is skewed: 50.6% of it lies below its mean. The share among 2000 has a standard deviation of 1.1%.
    assert float(on_floor.double().mean()) == pytest.approx(0.506, abs=0.055)
    others = ~on_floor
    excess = result["v_hat"] - phi
    torch.testing.assert_close(denominator[others], excess[others].sqrt(), rtol=1e-5, atol=1e-9)


def floors(name: str, variances: Sequence[float], gradient: float = 1e-6) -> list[float]:
    """Returns the squared denominator of each step, for a gradient far below the noise."""
    p = nn.Parameter(torch.zeros(2).double())
    rule = CORRECTED[name]([p], lr=1.0)
    result = []
    for variance in variances:
        before = p.detach().clone()
        step(rule, PrivateGradient({p: torch.full((2,), gradient).double()}, {p: variance}))
        result.append(float(gradient / (before - p.detach())[0]) ** 2)
    return result


@pytest.mark.parametrize("name", CORRECTED)
def test_the_automatic_floor_falls_with_the_deviation_of_the_second_moment(name):
    phi = 0.25
    found = floors(name, [phi] * 300)
    expected = [theory.second_moment_deviation(t, 0.999) * phi for t in range(1, 301)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(found))
    assert found[-1] < found[0] / 20


@pytest.mark.parametrize("variance", [0.0, torch.zeros(2).double()])
@pytest.mark.parametrize("name", CORRECTED)
def test_the_automatic_floor_is_positive_without_noise(name, variance):
    p = nn.Parameter(torch.ones(2).double())
    rule = CORRECTED[name]([p], lr=0.1)
    for _ in range(3):
        step(rule, PrivateGradient({p: torch.zeros(2).double()}, {p: variance}))
    assert p.tolist() == [1.0, 1.0]
    # It is small enough not to slow down a real gradient.
    fresh = CORRECTED[name]([p], lr=0.1)
    step(fresh, PrivateGradient({p: torch.tensor([1e-6, -1e-6]).double()}, {p: variance}))
    torch.testing.assert_close(p.detach(), torch.tensor([0.9, 1.1]).double())


def test_the_automatic_floor_follows_the_variance_of_each_coordinate():
    p = nn.Parameter(torch.zeros(3).double())
    phi = torch.tensor([0.01, 1.0, 100.0]).double()
    rule = rules.AdamBC([p], lr=1.0)
    step(rule, PrivateGradient({p: torch.full((3,), 1e-6).double()}, {p: phi}))
    expected = 1e-6 / (theory.second_moment_deviation(1, 0.999) * phi).sqrt()
    torch.testing.assert_close(-p.detach(), expected, rtol=1e-6, atol=0)
