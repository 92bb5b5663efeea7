"""The scale of MacAdam and AdaClip: its first value, its bounds, and the variance estimate behind it."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from adamas import PrivateGradient, rules
from tests.reference import macadam
from tests.support.geometric_setups import MACADAM, MACADAM_BC, WIDE, advance
from tests.support.geometric_steps import STEPS, D, frame, noise_only, parameters, problem


def variance_of(b: np.ndarray) -> np.ndarray:
    """Recovers the variances s from scales b: b^2 = sqrt(s) sum sqrt(s), so sum b^2 = (sum sqrt(s))^2."""
    return (b**2 / np.sqrt((b**2).sum(axis=-1, keepdims=True))) ** 2


@pytest.mark.parametrize("setup", [*MACADAM[1:5], *MACADAM_BC[1:9]], ids=str)
def test_the_problem_has_variances_at_both_bounds_and_between_them(setup):
    scales = np.array([scale for _, _, _, scale in setup.run(problem(0), 0.4)[2:]])
    variances = variance_of(scales)
    low, high = variances <= WIDE["h1"] * (1 + 1e-9), variances >= WIDE["h2"] * (1 - 1e-9)
    assert low.mean() > 0.05
    assert high.mean() > 0.05
    assert (~low & ~high).mean() > 0.2


@pytest.mark.parametrize("name", ["MacAdam", "MacAdamBC"])
@pytest.mark.parametrize("kappa", ["exact", "paper"])
@pytest.mark.parametrize("correction", ["tracked", "paper"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_after_one_step_the_scale_of_macadam_is_the_lower_bound(name, kappa, correction, dtype):
    # The paper's formula is 0/0 here: mhat_1 = gtil_1, so u_1 = s_1 = kappa_1 = 0.
    params = [nn.Parameter(torch.randn(300, 200).to(dtype)), nn.Parameter(torch.randn(7).to(dtype))]
    rule = getattr(rules, name)(params, h1=1e-9, h2=1e-6, kappa=kappa, noise_correction=correction)
    d = 60_007
    for p in params:
        torch.testing.assert_close(
            torch.as_tensor(rule.geometry().scale[p]).double().expand(p.shape),
            torch.full(p.shape, 1 / d).double(),
            rtol=1e-6,
            atol=0,
        )
    PrivateGradient({p: torch.randn_like(p) for p in params}, dict.fromkeys(params, 1e-4)).write_to(rule)
    rule.step()
    for p in params:
        assert p.isfinite().all()
        expected = torch.full(p.shape, math.sqrt(d * 1e-9)).double()
        scale = torch.as_tensor(rule.geometry().scale[p]).double().expand(p.shape)
        torch.testing.assert_close(scale, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("setup", [*MACADAM, *MACADAM_BC], ids=str)
def test_the_first_scale_is_b0_and_later_ones_keep_their_bounds(setup):
    given = problem(0)
    params = parameters(given.theta)
    rule = setup.make(params)
    _, first = frame(rule, params, 1.0)
    np.testing.assert_allclose(first, setup.options.get("b0", 1 / D), rtol=1e-14)
    low = math.sqrt(D * setup.options.get("h1", 1e-9))
    high = math.sqrt(D * setup.options.get("h2", 1e-6))
    for t in range(STEPS):
        advance(setup, rule, params, given, t, 2.0)
        _, b = frame(rule, params, 1.0)
        assert (b >= low * (1 - 1e-12)).all()
        assert (b <= high * (1 + 1e-12)).all()


def test_the_first_scale_of_adaclip_is_b0_or_comes_from_the_geometric_mean_of_its_bounds():
    params = parameters(np.zeros(D))
    _, first = frame(rules.AdaClip(params, h1=1e-8, h2=1e-4), params, 1.0)
    np.testing.assert_allclose(first, math.sqrt(1e-6 * D), rtol=1e-14)  # s^2 = 1e-6, b^2 = s sum(s)
    _, first = frame(rules.AdaClip(params, b0=0.3), params, 1.0)
    np.testing.assert_allclose(first, 0.3, rtol=1e-14)


@pytest.mark.parametrize("name", ["MacAdam", "MacAdamBC", "AdaClip"])
def test_the_scale_sums_over_all_trainable_tensors_of_all_groups(name):
    generator = torch.Generator().manual_seed(0)
    sizes = [40, 3, 100]
    values = [torch.randn(20, size, generator=generator).double() for size in sizes]
    frozen = nn.Parameter(torch.zeros(1000).double(), requires_grad=False)
    params = [nn.Parameter(torch.zeros(size).double()) for size in sizes]
    whole = nn.Parameter(torch.zeros(143).double())
    options = {"h1": 1e-4, "h2": 4.0}
    rule = getattr(rules, name)(
        [{"params": [params[0], frozen], "lr": 0.1}, {"params": params[1:], "lr": 0.2}], **options
    )
    single = getattr(rules, name)([whole], lr=0.1, **options)
    for t in range(20):
        PrivateGradient(
            {p: value[t] for p, value in zip(params, values, strict=True)}, dict.fromkeys(params, 0.1)
        ).write_to(rule)
        PrivateGradient({whole: torch.cat([value[t] for value in values])}, {whole: 0.1}).write_to(single)
        rule.step()
        single.step()
        together = torch.as_tensor(single.geometry().scale[whole]).expand(whole.shape)
        geometry = rule.geometry()
        assert frozen not in geometry.scale
        apart = torch.cat([torch.as_tensor(geometry.scale[p]).expand(p.shape) for p in params])
        torch.testing.assert_close(apart, together, rtol=1e-13, atol=0)
    assert float(together.max() / together.min()) > 1.2


def estimated_variance(kappa: str, correction: str, noise_variance: float, d: int) -> Iterator[float]:
    """Yields the mean of MacAdam's estimates, on independent releases of variance 1 + noise_variance."""
    generator = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.zeros(d).double())
    rule = rules.MacAdam([p], h1=1e-30, h2=1e30, b0=1.0, kappa=kappa, noise_correction=correction)
    while True:
        g = math.sqrt(1 + noise_variance) * torch.randn(d, generator=generator, dtype=torch.float64) + 2.0
        PrivateGradient({p: g}, {p: noise_variance}).write_to(rule)
        rule.step()
        yield float(variance_of(frame(rule, [p], 1.0)[1]).mean())


def test_the_exact_kappa_makes_the_variance_unbiased_and_the_published_one_does_not():
    d, steps = 40_000, 60
    exact = list(itertools.islice(estimated_variance("exact", "tracked", 0.0, d), steps))
    paper = list(itertools.islice(estimated_variance("paper", "paper", 0.0, d), steps))
    # The estimate of step 2 is a chi-square with one degree of freedom, whose standard deviation is sqrt(2);
    # later ones have less. So 5 sqrt(2/d) = 3.5% is at least 5 standard deviations at each of 5 steps: a
    # false alarm in 3 x 10^5.
    allowed = 5 * math.sqrt(2 / d)
    for t in (2, 3, 5, 10, 60):
        assert abs(exact[t - 1] - 1) < allowed, t
        # The published estimate is too large by a factor of 2.11, 1.80, 1.53, 1.30 and 1.11.
        expected = macadam.exact_kappa(t, 0.9) / macadam.paper_kappa(t, 0.9)
        assert abs(paper[t - 1] - 1) > allowed, t
        assert paper[t - 1] == pytest.approx(expected, abs=allowed), t


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_kappa_starts_at_0_and_has_the_limits_of_its_formulas(beta):
    assert macadam.exact_kappa(1, beta) == pytest.approx(0, abs=1e-15)
    assert macadam.exact_kappa(300, beta) == pytest.approx(2 * beta**2 / (1 + beta), rel=1e-9)
    assert macadam.paper_kappa(300, beta) == pytest.approx(2 * beta / (1 + beta), rel=1e-9)


def test_subtracting_the_noise_leaves_the_variance_of_the_gradients():
    d = 40_000
    # The noise variance is constant, so its last value is also its average, and both corrections are right.
    # At 0.05 of the gradients' variance it hardly ever makes an estimate negative, which h1 would cut off.
    for correction in ("tracked", "paper"):
        *_, last = itertools.islice(estimated_variance("exact", correction, 0.05, d), 60)
        # About 19 degrees of freedom: a standard deviation of 1.05 sqrt(2/19) = 0.34, the mean 0.34/200.
        # 5 standard deviations: a false alarm in 10^6. Without the correction the mean would be 1.05.
        assert abs(last - 1) < 5 * 0.34 / 200


@pytest.mark.parametrize("correction", ["tracked", "paper"])
def test_on_pure_noise_the_tracked_scale_is_steady_and_the_published_one_swings(correction):
    # The gain of the feedback is d sigma^2 / B^2 = 12.1: that of the paper's network of 795,010 parameters at
    # sigma = 1 and B = 256.
    d, h1, h2 = 437, 1e-9, 1e-6
    p = nn.Parameter(torch.zeros(d).double())
    rule = rules.MacAdam(
        [p],
        h1=h1,
        h2=h2,
        kappa="exact" if correction == "tracked" else "paper",
        noise_correction=correction,
    )
    sizes = [np.sqrt((step.scale**2).mean()) for step in noise_only(rule, p, 1.0, 300)][100:]
    low, high = math.sqrt(d * h1), math.sqrt(d * h2)  # a ratio of 31.6
    if correction == "tracked":
        assert max(sizes) < 1.3 * min(sizes)
        assert max(sizes) < 2 * low
    else:
        assert min(sizes) < 3 * low
        assert max(sizes) > 0.95 * high
