"""Releases with secure noise: their grid, sensitivity and stated variance."""

import pytest
import torch
from scipy import stats
from torch.nn import Parameter

import adamas
from adamas import Geometry, secure_noise
from adamas.engines import Stacked
from adamas.secure_noise import _BLOCK, _STEPS, SecureNoise
from tests.support.p_values import ALPHA
from tests.support.secure_noises import fixed, securely_released


@pytest.mark.parametrize("examples", [0, 1, 5])
def test_the_grid_around_a_center_does_not_depend_on_the_data(examples):
    generator = torch.Generator().manual_seed(examples)
    p, q = Parameter(torch.zeros(500, dtype=torch.float64)), Parameter(torch.zeros(3, 20))
    scale = {p: torch.rand(500, generator=generator, dtype=torch.float64) + 0.1, q: 0.7}
    center = {p: torch.randn(500, generator=generator, dtype=torch.float64) * 0.01}
    gradients = {x: torch.randn(examples, *x.shape, generator=generator, dtype=x.dtype) for x in (p, q)}
    geometry = Geometry(center, scale)
    release = securely_released(geometry, engines=[(Stacked(gradients), 0)] if examples else [])
    steps = geometry.whiten(p, release.mean[p]).mul_(8.0 * _STEPS / 1.3).detach()
    # Adding the center in float64 rounds by 1e-16 of about a million steps.
    assert (steps - steps.round()).abs().max() < 1e-6
    wrong = geometry.whiten(p, release.mean[p] + 1e-3 * center[p]).mul_(8.0 * _STEPS / 1.3).detach()
    assert (wrong - wrong.round()).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_little_noise_the_release_is_near_the_clipped_sum(dtype):
    generator = torch.Generator().manual_seed(0)
    p = Parameter(torch.zeros(4, 5, dtype=dtype))
    geometry = Geometry(
        {p: torch.randn(4, 5, generator=generator, dtype=dtype)},
        {p: torch.rand(4, 5, generator=generator, dtype=dtype) + 0.1},
    )
    gradients = {p: torch.randn(6, 4, 5, generator=generator, dtype=dtype)}
    release = securely_released(
        geometry, engines=[(Stacked(gradients), 0)], noise_multiplier=0.02, batch_size=8.0
    )
    sums = geometry.whiten(p, release.mean[p]).detach() * 8.0
    assert (sums - adamas.clipped_sum(gradients, geometry)[p]).abs().max() < 0.14
    assert (sums - adamas.clipped_sum(gradients, geometry)[p]).abs().max() > 2e-3
    empty = securely_released(geometry, noise_multiplier=0.02, batch_size=8.0)
    assert geometry.whiten(p, empty.mean[p]).abs().max() < 0.02


def sums_before_noise(gradients, geometry, batch):
    """Returns the whitened sums that noise is added to, in float64."""
    found = []
    noise = fixed(0)

    def seen(flat, parts, geometry, std, share, key):
        for p, part in parts.items():
            center, scale = geometry.center_of(p), torch.as_tensor(geometry.scale[p]).double()
            x = part.double() - (0 if center is None else share * torch.as_tensor(center).double())
            found.append((x / scale * batch).flatten())

    noise.release_ = seen
    securely_released(geometry, engines=[(Stacked(gradients), 0)], noise=noise, batch_size=batch)
    return torch.cat(found)


@pytest.mark.parametrize("kind", ["identical", "random", "cancelling"])
@pytest.mark.parametrize("centered", [False, True])
def test_one_example_moves_the_float32_sum_by_at_most_1(kind, centered):
    """Identical examples are the worst case: their sum is the longest, and rounds the most."""
    generator = torch.Generator().manual_seed(0)
    p = Parameter(torch.zeros(300))
    for n in (2, 63, 64, 257, 1000):
        rows = torch.randn(n, 300, generator=generator)
        if kind == "identical":
            rows = rows[:1].expand(n, 300).contiguous()
        elif kind == "cancelling":
            rows[1::2] = -rows[: n - n % 2 : 2][: len(rows[1::2])]
        geometry = Geometry({p: 0.1 * rows[0]} if centered else None, {p: 1.0})
        whole = sums_before_noise({p: rows}, geometry, float(n))
        for left_out in (0, n // 2, n - 1):
            rest = torch.cat([rows[:left_out], rows[left_out + 1 :]])
            moved = whole - sums_before_noise({p: rest}, geometry, float(n))
            assert float(moved.norm()) <= 1.0


def test_without_the_smaller_ball_rounding_moves_the_sum_by_more_than_1(monkeypatch):
    monkeypatch.setattr("adamas.privatize._ROUNDING", 0.0)
    p = Parameter(torch.zeros(300))
    rows = torch.randn(1, 300, generator=torch.Generator().manual_seed(0)).expand(1000, 300).contiguous()
    whole, rest = (sums_before_noise({p: rows[:n]}, Geometry.ball([p]), 1000.0) for n in (1000, 999))
    assert float((whole - rest).norm()) > 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_stated_variance_is_the_empirical_one_at_false_alarm_rate_1e_4(dtype, monkeypatch):
    """With two grid steps per deviation, rounding is 2% of the variance. Rejects a variance without it."""
    monkeypatch.setattr(secure_noise, "_STEPS", 2.0)
    monkeypatch.setattr(SecureNoise, "variance_factor", 1 + 1 / 48)
    n = 200_000
    p = Parameter(torch.zeros(n, dtype=dtype))
    release = securely_released(Geometry.ball([p], radius=2.0))
    squares = float(release.mean[p].double().square().sum())
    stated = release.noise_variance[p]
    for variance, right in ((stated, True), ((2.0 * 1.3 / 8) ** 2, False)):
        below = stats.chi2(n).cdf(squares / variance)
        assert (2 * min(below, 1 - below) > ALPHA) == right


def test_the_stated_variance_includes_rounding_to_the_grid():
    p, q = Parameter(torch.zeros(3)), Parameter(torch.zeros(2, dtype=torch.float64))
    scale = torch.tensor([0.5, 3.0], dtype=torch.float64)
    stated = securely_released(Geometry(None, {p: 2.0, q: scale})).noise_variance
    factor = 1 + 2.0**-40 / 12
    assert stated[p] == pytest.approx((2.0 * 1.3 / 8) ** 2 * factor, rel=1e-15)
    assert torch.allclose(stated[q], (scale * 1.3 / 8) ** 2 * factor, rtol=1e-15, atol=0)


def test_without_noise_nothing_is_drawn():
    p = Parameter(torch.zeros(4))
    noise = fixed(0)
    release = securely_released(Geometry({p: 0.5}, {p: 1.0}), noise=noise, noise_multiplier=0.0)
    assert noise.draws == 0
    assert release.mean[p].tolist() == [0.5] * 4


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (2, 3, 4), (_BLOCK + 1,)])
def test_every_shape_is_released_in_place(shape):
    out = torch.full(shape, 3.0)
    assert fixed(0).round_(out, 0.1) is out
    assert not out.numel() or ((out - 3).abs() < 0.1 * 7).all()
