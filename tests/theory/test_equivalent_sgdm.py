"""DP-Adam is DP-SGD with momentum where noise dominates the second moment."""

import math

import pytest
import torch
from torch import nn

from adamas import PrivateGradient, rules, theory


@pytest.mark.parametrize(
    ("lr", "noise_multiplier", "clip_norm", "batch_size", "limit"),
    [
        (0.001, 0.4, 0.1, 256, 0.64),  # the paper prints 0.645, from Phi rounded to 2.4e-8
        (0.01, 0.4, 0.1, 256, 6.4),
        (0.001, 1.0, 1.0, 256, 0.0256),
        (0.001, 1.0, 1.0, 2048, 0.2048),
    ],
)
def test_the_equivalent_learning_rate_falls_to_the_limit_in_the_paper(
    lr, noise_multiplier, clip_norm, batch_size, limit
):
    setting = {
        "lr": lr,
        "noise_multiplier": noise_multiplier,
        "clip_norm": clip_norm,
        "batch_size": batch_size,
    }
    rates = [theory.equivalent_sgdm_lr(t, **setting) for t in range(1, 400)]
    assert rates[-1] == pytest.approx(limit, rel=1e-9)
    assert rates[0] == pytest.approx(10 * limit, rel=1e-9)  # 1 / (1 - beta1)
    assert rates == sorted(rates, reverse=True)


def adam_and_sgdm(gradients, phi, *, lr, betas, factor=1.0):
    """Returns the trajectories of DP-Adam and of DP-SGD with `factor` times the equivalent learning rate."""
    p, q = (nn.Parameter(torch.zeros(gradients.shape[1]).double()) for _ in range(2))
    adam = rules.Adam([p], lr=lr, betas=betas)
    sgd = rules.SGD([q], lr=1.0, momentum=betas[0])
    ours, theirs = [], []
    for t, gradient in enumerate(gradients, start=1):
        rate = theory.equivalent_sgdm_lr(
            t, lr=lr, noise_multiplier=math.sqrt(phi) * 100, clip_norm=0.5, batch_size=50, beta1=betas[0]
        )
        sgd.param_groups[0]["lr"] = factor * rate
        for rule, parameter, trajectory in ((adam, p, ours), (sgd, q, theirs)):
            PrivateGradient({parameter: gradient.clone()}, {parameter: phi}).write_to(rule)
            rule.step()
            trajectory.append(parameter.detach().clone())
    return torch.stack(ours), torch.stack(theirs)


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_adam_equals_sgd_with_momentum_if_the_second_moment_is_the_noise_variance(beta1):
    # Gradients have magnitude sqrt(Phi) and random sign, so v_hat is Phi from the first step on.
    phi = 0.04
    signs = torch.randint(2, (60, 20), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    adam, sgdm = adam_and_sgdm(math.sqrt(phi) * signs, phi, lr=0.1, betas=(beta1, 0.999))
    torch.testing.assert_close(adam, sgdm, rtol=1e-6, atol=1e-7)  # Adam adds eps = 1e-8


def test_adam_is_near_sgd_with_momentum_on_noise_dominated_releases():
    # The drift is a tenth of the noise, Phi = 0.04. From step 1000 on, v_hat is Phi within about
    # sqrt(2 / 1000) = 4.5%, so steps agree within 2.3%, plus 0.5% for the square of the drift.
    generator = torch.Generator().manual_seed(1)
    phi = 0.04
    drift = math.sqrt(phi) / 10 * torch.randn(400, generator=generator).double()
    noise = math.sqrt(phi) * torch.randn(2000, 400, generator=generator).double()
    for factor, near in [(1.0, True), (1.1, False), (1 / 1.1, False)]:
        adam, sgdm = adam_and_sgdm(drift + noise, phi, lr=0.01, betas=(0.9, 0.9999), factor=factor)
        ours, theirs = adam[-1] - adam[1000], sgdm[-1] - sgdm[1000]
        assert ((ours - theirs).norm() / ours.norm() < 0.05) == near, factor
