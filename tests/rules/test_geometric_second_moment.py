"""MacAdamBC and ScaleThenPrivatize subtract from the second moment exactly what noise adds to it."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adamas import rules
from adamas.rules import Rule
from tests.support.geometric_steps import BATCH, D, frame, noise_only


@dataclass(frozen=True)
class SecondMoments:
    """Values after steps on pure noise, one per coordinate unless stated otherwise.

    Attributes:
        v_hat: Adam's second moment, bias-corrected.
        averaged: Noise variances, averaged in the same way.
        denominator: Square of the denominator of the last update.
        deviation: Standard deviation of mean(v_hat - averaged), one number. A scale depends on earlier
            releases only, so the summands are uncorrelated, and each has the variance 2 variance_t^2.
    """

    v_hat: np.ndarray
    averaged: np.ndarray
    denominator: np.ndarray
    deviation: float


def second_moments(rule: Rule, p: Tensor, sigma: float, steps: int, beta2: float) -> SecondMoments:
    """Steps a rule with lr = 1 and beta1 = 0.9 on pure noise."""
    m, v, averaged, spread = np.zeros((4, p.numel()))
    for step in noise_only(rule, p, sigma, steps):
        np.testing.assert_allclose(step.release, step.noise, atol=1e-12 * step.scale.max())  # nothing clipped
        variance = (step.scale * sigma / BATCH) ** 2
        m = 0.9 * m + 0.1 * step.release
        v = beta2 * v + (1 - beta2) * step.release**2
        averaged = beta2 * averaged + (1 - beta2) * variance
        spread = beta2**2 * spread + (1 - beta2) ** 2 * 2 * variance**2
    start = 1 - beta2**steps
    denominator = (m / (1 - 0.9**steps) / step.update) ** 2
    return SecondMoments(
        v / start, averaged / start, denominator, math.sqrt(spread.sum()) / start / p.numel()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "error"),
    # b^2 is near d h1: 0.002 and 20. The published Phi is the noise variance divided by b^2.
    [((1e-6, 1e-4), -300.0), ((1e-2, 1.0), 0.9)],
    ids=["small scale", "large scale"],
)
@pytest.mark.parametrize("phi", ["exact", "paper"])
def test_on_pure_noise_the_exact_phi_cancels_the_second_moment_and_the_published_one_does_not(
    bounds, error, phi
):
    d, sigma, beta2, floor = 2000, 0.1, 0.99, 1e-30
    p = nn.Parameter(torch.zeros(d).double())
    h1, h2 = bounds
    rule = rules.MacAdamBC(
        [p], lr=1.0, betas=(0.9, beta2), floor=floor, h1=h1, h2=h2, b0=math.sqrt(d * h1), phi=phi
    )
    found = second_moments(rule, p, sigma, 300, beta2)
    subtracted = found.averaged if phi == "exact" else np.full(d, (sigma / BATCH) ** 2)
    np.testing.assert_allclose(found.denominator, np.maximum(found.v_hat - subtracted, floor), rtol=1e-6)
    left = float((found.v_hat - subtracted).mean())
    if phi == "exact":
        assert abs(left) < 5 * found.deviation  # a false alarm in 10^6
        # v_hat of one coordinate has a standard deviation of sqrt(2 (1-b2)/(1+b2)) = 10%, the mean 10%/45.
        assert found.deviation < 3e-3 * found.averaged.mean()
    else:
        assert abs(left) > 100 * found.deviation
        relative = left / found.averaged.mean()
        assert relative < error if error < 0 else relative > error


def test_on_pure_noise_the_corrected_second_moment_of_scale_then_privatize_is_zero():
    d, sigma, beta2, floor = 2000, 0.15, 0.99, 1e-30
    p = nn.Parameter(torch.zeros(d).double())
    rule = rules.ScaleThenPrivatize([p], lr=1.0, betas=(0.9, beta2), floor=floor)
    found = second_moments(rule, p, sigma, 300, beta2)
    corrected = found.v_hat - found.averaged
    np.testing.assert_allclose(found.denominator, np.maximum(corrected, floor), rtol=1e-6)
    assert abs(float(corrected.mean())) < 5 * found.deviation  # a false alarm in 10^6
    # Subtracting the noise variance of the last step instead of the average is off by far more.
    *_, last = noise_only(rule, p, sigma, 1)
    latest = (last.scale * sigma / BATCH) ** 2
    assert abs(float((found.v_hat - latest).mean())) > 20 * found.deviation


@pytest.mark.parametrize("floor", [None, 1e-3])
def test_the_scale_of_scale_then_privatize_is_its_denominator_plus_a_constant(floor):
    p = nn.Parameter(torch.zeros(D).double())
    rule = rules.ScaleThenPrivatize([p], lr=1.0, eps=0.0, scale_eps=0.5, floor=floor)
    m = np.zeros(D)
    np.testing.assert_array_equal(frame(rule, [p], 1.0)[1], 1.0)
    for t, step in enumerate(noise_only(rule, p, 3.0, 30), start=1):
        m = 0.9 * m + 0.1 * step.release
        denominator = -m / (1 - 0.9**t) / step.update
        np.testing.assert_allclose(frame(rule, [p], 1.0)[1], denominator + 0.5, rtol=1e-9)
