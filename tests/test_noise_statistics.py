"""The noise of a release is normal, of the stated variance, and independent.

The statistical tests fix the seed. Correct noise fails one with probability ALPHA over the choice of the
seed, and each test also shows wrong noise that it rejects.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import Parameter
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, clipped_sum, rules
from adamas import noise as noise_module
from adamas._numerics import normals, normals_kernel
from adamas.engines import Stacked
from adamas.noise import _BLOCK, GaussianNoise, _add_tail
from tests.support.p_values import ALPHA, correlation_p_value
from tests.support.releases import released


def ks_p_value(values, std):
    return stats.kstest(values.double().numpy().ravel(), stats.norm(scale=std).cdf).pvalue


def accepts_only(values, std):
    """Tells whether a Kolmogorov-Smirnov test accepts this deviation and rejects 2/3 and 3/2 of it."""
    right = ks_p_value(values, std) > ALPHA
    return right and all(ks_p_value(values, factor * std) < ALPHA for factor in (2 / 3, 3 / 2))


def autocorrelation_p_value(values, lags=20):
    """Tests the first lags jointly (Box and Pierce)."""
    n = values.size
    products = [float(np.dot(values[lag:], values[:-lag])) ** 2 / (n - lag) for lag in range(1, lags + 1)]
    return stats.chi2(lags).sf(sum(products))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_empty_batch_releases_gaussian_noise_at_false_alarm_rate_1e_4(dtype):
    """False-alarm rate: ALPHA = 1e-4. Rejects 2/3 and 3/2 of the deviation."""
    p = Parameter(torch.zeros(100, 50, dtype=dtype))
    release = released(Geometry.ball([p], radius=2.0), noise_multiplier=1.3, batch_size=8.0)
    assert release.mean[p].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    assert accepts_only(release.mean[p], 2.0 * 1.3 / 8.0)


def test_noise_around_a_clipped_sum_is_gaussian_at_false_alarm_rate_1e_4():
    """False-alarm rate: ALPHA = 1e-4 for each parameter. Rejects 2/3 and 3/2 of the deviation."""
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.zeros(3000, dtype=torch.float64)), Parameter(torch.zeros(7, 300))]
    gradients = {p: torch.randn(5, *p.shape, generator=generator, dtype=p.dtype) for p in params}
    scale = {params[0]: torch.rand(3000, generator=generator, dtype=torch.float64) + 0.1, params[1]: 0.7}
    center = {params[1]: torch.full((7, 300), 0.01)}
    geometry = Geometry(center, scale)
    release = released(geometry, engines=[(Stacked(gradients), 0)], noise_multiplier=1.3, batch_size=5.0)
    sums = clipped_sum(gradients, geometry)
    for p in params:
        noise = geometry.whiten(p, release.mean[p]) * 5.0 - sums[p]
        assert accepts_only(noise.detach(), 1.3)


def test_the_noise_of_a_run_is_gaussian_for_used_and_unused_parameters_at_false_alarm_rate_1e_4():
    """False-alarm rate: ALPHA = 1e-4 for each parameter. Rejects 2/3 and 3/2 of the deviation."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used = Parameter(torch.zeros(40, 50))
            self.unused = Parameter(torch.zeros(3000))

    model = Model()
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.randn(20, 40, 50, generator=torch.Generator().manual_seed(0))),
        lambda model, batch: 1e-9 * (model.used * batch[0]).sum((1, 2)),
        batch_size=4,
        steps=1,
        noise_multiplier=0.8,
        clip_norm=3.0,
        delta=1e-3,
        seed=5,
        progress=False,
    )
    (batch,) = run.batches()
    release = run.privatize(batch)
    assert accepts_only(release.mean[model.used], 3.0 * 0.8 / 4)
    assert accepts_only(release.mean[model.unused], 3.0 * 0.8 / 4)


@pytest.fixture(scope="module")
def releases():
    """Makes 20,000 releases of two tiny parameters: one in a ball, one with a scale per coordinate."""
    ball, scaled = Parameter(torch.zeros(2)), Parameter(torch.zeros(3, dtype=torch.float64))
    scale = torch.tensor([0.01, 1.0, 30.0], dtype=torch.float64)
    center = torch.tensor([5.0, 0.0, -1.0], dtype=torch.float64)
    geometry = Geometry({scaled: center}, {ball: 0.5, scaled: scale})
    noise = GaussianNoise(4)
    made = [released(geometry, noise=noise, noise_multiplier=2.0, batch_size=16.0) for _ in range(20_000)]
    values = torch.stack([torch.cat([r.mean[ball].double(), r.mean[scaled] - center]) for r in made])
    stated = made[0].noise_variance
    variance = torch.cat([torch.full((2,), float(stated[ball]), dtype=torch.float64), stated[scaled]])
    return values.numpy(), variance.numpy()


@pytest.mark.slow
def test_the_stated_variance_is_exact(releases):
    widths = np.array([0.5, 0.5, 0.01, 1.0, 30.0])
    np.testing.assert_allclose(releases[1], (widths * 2.0 / 16.0) ** 2, rtol=1e-12)


@pytest.mark.slow
def test_the_stated_variance_is_the_empirical_one_at_false_alarm_rate_5e_4(releases):
    """False-alarm rate: ALPHA = 1e-4 for each of 5 coordinates. Rejects a variance that is off by 6%."""
    values, variance = releases
    n = len(values)
    for factor, right in ((1.0, True), (1 / 1.06, False), (1.06, False)):
        below = stats.chi2(n).cdf((values**2).sum(0) / (factor * variance))
        p_values = 2 * np.minimum(below, 1 - below)
        assert (p_values > ALPHA).all() if right else (p_values < ALPHA).all()


@pytest.mark.slow
def test_the_mean_of_releases_is_the_center_at_false_alarm_rate_5e_4(releases):
    """False-alarm rate: ALPHA = 1e-4 for each of 5 coordinates. Rejects an offset of 5% of a deviation."""
    values, variance = releases
    standard = values / np.sqrt(variance)
    for offset, right in ((0.0, True), (0.05, False)):
        p_values = 2 * stats.norm.sf(np.abs((standard + offset).mean(0)) * np.sqrt(len(standard)))
        assert (p_values > ALPHA).all() if right else (p_values < ALPHA).all()


@pytest.mark.slow
def test_coordinates_and_consecutive_releases_are_independent_at_false_alarm_rate_1e_3(releases):
    """False-alarm rate: ALPHA = 1e-4 for each of 10 pairs and for steps. Rejects a shared part of 5%."""
    values, variance = releases
    standard = values / np.sqrt(variance)
    for i in range(5):
        for j in range(i):
            assert correlation_p_value(standard[:, i], standard[:, j]) > ALPHA
    assert autocorrelation_p_value(standard[:, 0]) > ALPHA
    assert correlation_p_value(standard[1:], standard[:-1]) > ALPHA
    leaking = standard[1:] + 0.05 * standard[:-1]
    assert correlation_p_value(leaking, standard[:-1]) < ALPHA
    assert autocorrelation_p_value(leaking[:, 0]) < ALPHA


def test_the_tails_have_their_probability_at_false_alarm_rate_2e_4():
    """False-alarm rate: ALPHA = 1e-4 for each threshold. Rejects tails of half the weight."""
    values = GaussianNoise(0).normal_(torch.empty(4_000_000)).abs()
    for threshold in (3.0, 4.0):
        beyond = int((values > threshold).sum())
        chance = 2 * stats.norm.sf(threshold)
        assert stats.binomtest(beyond, values.numel(), chance).pvalue > ALPHA
        assert stats.binomtest(beyond // 2, values.numel(), chance).pvalue < ALPHA


def test_the_tail_goes_beyond_the_reach_of_31_bit_uniform_numbers():
    """Of values beyond 5 standard deviations, 1.16% are beyond 5.8.

    Among 20,000 of them the count is 232, with a standard deviation of 15. Bounds of 5 standard deviations
    have a false-alarm rate of 6e-7. With 31-bit uniform numbers alone, the tail would end at 6.56.
    """
    places = np.arange(20_000)
    values = np.zeros(20_000, dtype=np.float32)
    _add_tail(values, 1.0, np.where(places % 2, -1 - places, places), np.random.default_rng(0))
    assert (np.abs(values) > 5).all()
    assert abs(int((np.abs(values) > 5.8).sum()) - 232) < 75
    assert (np.sign(values) == np.where(places % 2, -1, 1)).all()


def test_values_in_the_tail_are_redrawn_from_its_distribution(monkeypatch):
    monkeypatch.setattr(normals_kernel, "available", lambda: False)
    plain = GaussianNoise(seed=3).normal_(torch.empty(200_000), std=0.5)
    monkeypatch.setattr(normals, "TAIL", 2.0)
    monkeypatch.setattr(noise_module, "_FAR", 20_000)
    values = GaussianNoise(seed=3).normal_(torch.empty(200_000), std=0.5)
    far = plain.abs() > 1.0
    assert torch.equal(values[~far], plain[~far])
    assert not torch.equal(values[far], plain[far])
    assert (values[far].abs() > 1.0).all()
    # The 9,100 redrawn magnitudes have the distribution of those they replace: false-alarm rate 1e-4.
    assert stats.ks_2samp(values[far].abs().numpy(), plain[far].abs().numpy()).pvalue > 1e-4


def test_blocks_of_a_tensor_are_independent_at_false_alarm_rate_4e_4():
    """False-alarm rate: ALPHA = 1e-4 for each of 4 statistics. Rejects a shared part of 2%."""
    values = GaussianNoise(0).normal_(torch.empty(3 * _BLOCK)).double().numpy()
    blocks = values.reshape(3, _BLOCK)
    assert autocorrelation_p_value(values) > ALPHA
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert correlation_p_value(blocks[i], blocks[j]) > ALPHA
    assert correlation_p_value(blocks[0], blocks[1] + 0.02 * blocks[0]) < ALPHA
    assert autocorrelation_p_value(values[1:] + 0.02 * values[:-1]) < ALPHA


def test_float64_noise_has_full_precision():
    values = GaussianNoise(0).normal_(torch.empty(10_000, dtype=torch.float64))
    assert (values != values.float().double()).float().mean() > 0.99
    assert ks_p_value(values, 1.0) > ALPHA
