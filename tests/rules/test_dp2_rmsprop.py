"""DP2-RMSProp alternates between SGD and RMSProp."""

import numpy as np
import torch
from torch import nn

from adamas import PrivateGradient, rules
from tests.support.geometric_steps import flat, parameters, problem, tensors


def test_the_first_phase_has_the_momentum_of_sgd():
    params, twins = parameters(problem(0).theta), parameters(problem(0).theta)
    rule = rules.DP2RMSProp(params, lr=0.1, period=100, momentum=0.9)
    parent = torch.optim.SGD(twins, lr=0.1, momentum=0.9)
    for t in range(20):
        g = problem(0).xi[t]
        PrivateGradient(dict(zip(params, tensors(g), strict=True)), dict.fromkeys(params, 0.3)).write_to(rule)
        for twin, part in zip(twins, tensors(g), strict=True):
            twin.grad = part
        rule.step()
        parent.step()
        for p, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(p, twin, rtol=1e-12, atol=1e-12)


def test_phases_alternate_and_each_sgd_phase_renews_the_preconditioner():
    p = nn.Parameter(torch.zeros(4).double())
    rho, eps, ratio = 0.9, 1e-3, 0.25
    rule = rules.DP2RMSProp([p], lr=0.5, lr2=0.01, period=3, clip_ratio=ratio, decay=rho, eps=eps)
    rng = np.random.default_rng(0)
    a = np.zeros(4)
    for _ in range(4):
        seen = []
        for phase in ("SGD", "SGD", "SGD", "RMS", "RMS", "RMS"):
            geometry = rule.geometry()
            assert not flat([p], geometry.center).any()
            g = rng.normal(size=4)
            before = p.detach().numpy().copy()
            PrivateGradient({p: torch.tensor(g)}, {p: 0.1}).write_to(rule)
            rule.step()
            scale, update = flat([p], geometry.scale), p.detach().numpy() - before
            if phase == "SGD":
                np.testing.assert_array_equal(scale, 1.0)
                np.testing.assert_allclose(update, -0.5 * g, rtol=1e-12)
                seen.append(g)
            else:
                if seen:  # the average is squared, not the gradients
                    a, seen = rho * a + (1 - rho) * np.mean(seen, axis=0) ** 2, []
                np.testing.assert_allclose(scale, ratio * (np.sqrt(a) + eps), rtol=1e-12)
                np.testing.assert_allclose(update, -0.01 * g / (np.sqrt(a) + eps), rtol=1e-12)


def test_a_schedule_scales_both_learning_rates():
    p = nn.Parameter(torch.zeros(2).double())
    rule = rules.DP2RMSProp([p], lr=0.5, lr2=0.01, period=1, eps=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(rule, lambda t: 1 / (1 + t))
    for t in range(8):
        scale = flat([p], rule.geometry().scale)
        before = p.detach().numpy().copy()
        PrivateGradient({p: torch.tensor([1.0, -2.0]).double()}, {p: 0.1}).write_to(rule)
        rule.step()
        schedule.step()
        rate = (0.01 if t % 2 else 0.5) / (1 + t)
        np.testing.assert_allclose(
            p.detach().numpy() - before, -rate * np.array([1.0, -2.0]) / scale, rtol=1e-9
        )
