"""The noise of a release: its law, its independence, and that it is a function of seed and position.

The statistical tests compute p-values of fixed seeds. Right noise fails one with probability ALPHA over
the choice of its seed, and each test also shows wrong noise that it rejects.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import Parameter
from torch.utils.data import TensorDataset

import adamas
from adamas import Geometry, clipped_sum, rules
from adamas import noise as noise_module
from adamas._numerics import normals as _normals
from adamas._numerics import normals_kernel as _normals_kernel
from adamas.engines import Stacked
from adamas.noise import _BLOCK, GaussianNoise, _add_tail
from adamas.privatize import privatize

ALPHA = 1e-4


def released(geometry, *, seed=0, noise=None, engines=(), noise_multiplier=1.3, batch=8.0, charge=None):
    return privatize(
        engines,
        geometry,
        noise_multiplier=noise_multiplier,
        expected_batch_size=batch,
        noise=noise or GaussianNoise(seed),
        charge=charge or (lambda _: ()),
    )


def ks_p_value(values, std):
    return stats.kstest(values.double().numpy().ravel(), stats.norm(scale=std).cdf).pvalue


def accepts_only(values, std):
    """Whether a Kolmogorov-Smirnov test accepts this deviation and rejects two thirds and 3/2 of it."""
    right = ks_p_value(values, std) > ALPHA
    return right and all(ks_p_value(values, factor * std) < ALPHA for factor in (2 / 3, 3 / 2))


def correlation_p_value(a, b):
    """For independent standard normal values, the scaled sum of products is standard normal."""
    product = float(np.dot(a.ravel(), b.ravel())) / math.sqrt(a.size)
    return 2 * stats.norm.sf(abs(product))


def autocorrelation_p_value(values, lags=20):
    """Box and Pierce's test of the first lags together."""
    n = values.size
    products = [float(np.dot(values[lag:], values[:-lag])) ** 2 / (n - lag) for lag in range(1, lags + 1)]
    return stats.chi2(lags).sf(sum(products))


# The law of a release -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_empty_batch_releases_gaussian_noise_at_false_alarm_rate_1e_4(dtype):
    """False-alarm rate: ALPHA = 1e-4; deviations of 2/3 and 3/2 are rejected."""
    p = Parameter(torch.zeros(100, 50, dtype=dtype))
    release = released(Geometry.ball([p], radius=2.0), noise_multiplier=1.3, batch=8.0)
    assert release.mean[p].dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    assert accepts_only(release.mean[p], 2.0 * 1.3 / 8.0)


def test_noise_around_a_clipped_sum_is_gaussian_at_false_alarm_rate_1e_4():
    """False-alarm rate: ALPHA = 1e-4 for each parameter; deviations of 2/3 and 3/2 are rejected."""
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.zeros(3000, dtype=torch.float64)), Parameter(torch.zeros(7, 300))]
    gradients = {p: torch.randn(5, *p.shape, generator=generator, dtype=p.dtype) for p in params}
    scale = {params[0]: torch.rand(3000, generator=generator, dtype=torch.float64) + 0.1, params[1]: 0.7}
    center = {params[1]: torch.full((7, 300), 0.01)}
    geometry = Geometry(center, scale)
    release = released(geometry, engines=[(Stacked(gradients), 0)], noise_multiplier=1.3, batch=5.0)
    sums = clipped_sum(gradients, geometry)
    for p in params:
        noise = geometry.whiten(p, release.mean[p]) * 5.0 - sums[p]
        assert accepts_only(noise.detach(), 1.3)


def test_the_noise_of_a_run_is_gaussian_for_used_and_unused_parameters_at_false_alarm_rate_1e_4():
    """False-alarm rate: ALPHA = 1e-4 for each parameter; deviations of 2/3 and 3/2 are rejected."""

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
    """20,000 releases of a tiny parameter clipped to a ball and one with a scale per coordinate."""
    ball, scaled = Parameter(torch.zeros(2)), Parameter(torch.zeros(3, dtype=torch.float64))
    scale = torch.tensor([0.01, 1.0, 30.0], dtype=torch.float64)
    center = torch.tensor([5.0, 0.0, -1.0], dtype=torch.float64)
    geometry = Geometry({scaled: center}, {ball: 0.5, scaled: scale})
    noise = GaussianNoise(4)
    made = [released(geometry, noise=noise, noise_multiplier=2.0, batch=16.0) for _ in range(20_000)]
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
    """False-alarm rate: ALPHA = 1e-4 for each of 5 coordinates; a variance that is off by 6% is rejected."""
    values, variance = releases
    n = len(values)
    for factor, right in ((1.0, True), (1 / 1.06, False), (1.06, False)):
        below = stats.chi2(n).cdf((values**2).sum(0) / (factor * variance))
        p_values = 2 * np.minimum(below, 1 - below)
        assert (p_values > ALPHA).all() if right else (p_values < ALPHA).all()


@pytest.mark.slow
def test_releases_scatter_around_the_center_at_false_alarm_rate_5e_4(releases):
    """False-alarm rate: ALPHA = 1e-4 for each of 5 coordinates; 5% of a deviation beside it is rejected."""
    values, variance = releases
    standard = values / np.sqrt(variance)
    for offset, right in ((0.0, True), (0.05, False)):
        p_values = 2 * stats.norm.sf(np.abs((standard + offset).mean(0)) * np.sqrt(len(standard)))
        assert (p_values > ALPHA).all() if right else (p_values < ALPHA).all()


@pytest.mark.slow
def test_coordinates_and_consecutive_releases_are_independent_at_false_alarm_rate_1e_3(releases):
    """False-alarm rate: ALPHA = 1e-4 for each of 10 pairs and for the steps; a share of 5% is rejected."""
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


def test_the_tails_are_as_heavy_as_they_should_be_at_false_alarm_rate_2e_4():
    """False-alarm rate: ALPHA = 1e-4 for each threshold; tails of half the weight are rejected."""
    values = GaussianNoise(0).normal_(torch.empty(4_000_000)).abs()
    for threshold in (3.0, 4.0):
        beyond = int((values > threshold).sum())
        chance = 2 * stats.norm.sf(threshold)
        assert stats.binomtest(beyond, values.numel(), chance).pvalue > ALPHA
        assert stats.binomtest(beyond // 2, values.numel(), chance).pvalue < ALPHA


# Independence within a tensor, between draws and between seeds -------------------------------------------


def test_blocks_of_a_tensor_are_independent_at_false_alarm_rate_4e_4():
    """False-alarm rate: ALPHA = 1e-4 for each of 4 statistics; a share of 2% is rejected."""
    values = GaussianNoise(0).normal_(torch.empty(3 * _BLOCK)).double().numpy()
    blocks = values.reshape(3, _BLOCK)
    assert autocorrelation_p_value(values) > ALPHA
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert correlation_p_value(blocks[i], blocks[j]) > ALPHA
    assert correlation_p_value(blocks[0], blocks[1] + 0.02 * blocks[0]) < ALPHA
    assert autocorrelation_p_value(values[1:] + 0.02 * values[:-1]) < ALPHA


def test_no_two_draws_blocks_parameters_or_seeds_share_values():
    n = 2 * _BLOCK + 100
    first = GaussianNoise(0)
    pieces = [first.normal_(torch.empty(n)) for _ in range(3)]
    for seed in (1, 2**32, 2**32 + 1, 2**64, 2**255, None):
        pieces.append(GaussianNoise(seed).normal_(torch.empty(n)))
    params = [Parameter(torch.zeros(_BLOCK)), Parameter(torch.zeros(_BLOCK, 1)), Parameter(torch.zeros(99))]
    release = released(Geometry.ball(params), seed=7)
    pieces += [release.mean[p].flatten() for p in params]
    heads = [part[:50] for piece in pieces for part in piece.split(_BLOCK)]
    assert len({tuple(head.tolist()) for head in heads}) == len(heads) == 9 * 3 + 3


def test_seeds_that_torch_confuses_are_different_here():
    def torch_values(seed):
        return torch.randn(100, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(torch_values(5), torch_values(5 + 2**32))  # 32 bits is all that it keeps

    def ours(seed):
        return GaussianNoise(seed).normal_(torch.empty(100))

    assert torch.equal(ours(5), ours(5))
    a, b = ours(5), ours(5 + 2**32)
    assert not (a == b).any()
    assert correlation_p_value(a.numpy(), b.numpy()) > ALPHA


# A function of seed and position -------------------------------------------------------------------------


@pytest.fixture
def thread_count():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_values_do_not_depend_on_the_number_of_threads(thread_count, dtype):
    drawn = []
    for threads in (1, 2, 3):
        thread_count(threads)
        noise = GaussianNoise(1)
        drawn.append([noise.normal_(torch.empty(n, dtype=dtype)) for n in (5, 4 * _BLOCK + 17, _BLOCK)])
    for other in drawn[1:]:
        for a, b in zip(drawn[0], other, strict=True):
            assert torch.equal(a, b)


def test_a_release_does_not_depend_on_the_number_of_threads(thread_count):
    params = [Parameter(torch.zeros(2 * _BLOCK)), Parameter(torch.zeros(5, 5))]
    geometry = Geometry.ball(params)
    results = []
    for threads in (1, 2):
        thread_count(threads)
        results.append(released(geometry, seed=4).mean)
    assert all(torch.equal(results[0][p], results[1][p]) for p in params)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, _BLOCK, _BLOCK + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_reproduced_from_the_counter(n, dtype):
    noise = GaussianNoise(9)
    for _ in range(3):
        noise.normal_(torch.empty(7))
    state = noise.state_dict()
    expected = [noise.normal_(torch.empty(n, dtype=dtype)) for _ in range(2)]
    resumed = GaussianNoise(9)
    resumed.load_state_dict(state)
    for values in expected:
        assert torch.equal(resumed.normal_(torch.empty(n, dtype=dtype)), values)
    assert not torch.equal(expected[0], expected[1])


def test_the_state_is_a_position_and_names_no_seed():
    noise = GaussianNoise(123_456_789)
    noise.normal_(torch.empty(3))
    assert noise.state_dict() == {"draws": 1}


def test_a_draw_does_not_depend_on_the_sizes_of_those_before():
    a, b = GaussianNoise(2), GaussianNoise(2)
    a.normal_(torch.empty(3))
    b.normal_(torch.empty(2 * _BLOCK))
    assert torch.equal(a.normal_(torch.empty(50)), b.normal_(torch.empty(50)))


def test_secret_seeds_differ():
    assert not torch.equal(GaussianNoise().normal_(torch.empty(20)), GaussianNoise().normal_(torch.empty(20)))


def test_the_global_generator_is_neither_used_nor_changed():
    torch.manual_seed(0)
    first = GaussianNoise(0).normal_(torch.empty(2 * _BLOCK))
    assert torch.rand(()).item() == torch.rand((), generator=torch.Generator().manual_seed(0)).item()
    torch.manual_seed(1)
    assert torch.equal(GaussianNoise(0).normal_(torch.empty(2 * _BLOCK)), first)


def test_float64_values_have_all_their_bits():
    values = GaussianNoise(0).normal_(torch.empty(10_000, dtype=torch.float64))
    assert (values != values.float().double()).float().mean() > 0.99
    assert ks_p_value(values, 1.0) > ALPHA


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (2, 3, 4)])
def test_every_shape_is_filled_in_place(shape):
    out = torch.full(shape, math.nan)
    assert GaussianNoise(0).normal_(out) is out
    assert out.isfinite().all()


def test_what_cannot_be_filled_in_place_is_refused():
    with pytest.raises(RuntimeError, match="view"):
        GaussianNoise(0).normal_(torch.empty(4, 5).t())


# The door ------------------------------------------------------------------------------------------------


def test_recording_comes_before_the_noise_and_stops_the_release():
    p = Parameter(torch.zeros(4))
    noise = GaussianNoise(0)
    draws = []
    released(Geometry.ball([p]), noise=noise, charge=lambda _: draws.append(noise.draws) or ())
    assert draws == [0]  # once, and nothing had been drawn
    assert noise.draws == 1

    def refuse(_):
        raise RuntimeError("budget")

    with pytest.raises(RuntimeError, match="budget"):
        released(Geometry.ball([p]), noise=noise, charge=refuse)
    assert noise.draws == 1


def test_without_noise_nothing_is_drawn_and_the_variance_is_zero():
    p = Parameter(torch.zeros(4))
    noise = GaussianNoise(0)
    release = released(Geometry.ball([p]), noise=noise, noise_multiplier=0.0)
    assert noise.draws == 0
    assert release.mean[p].tolist() == [0.0] * 4
    assert release.noise_variance[p] == 0.0


@pytest.mark.parametrize("noise_multiplier", [-1.0, math.nan])
def test_a_meaningless_multiplier_never_means_no_noise(noise_multiplier):
    p = Parameter(torch.zeros(4))
    with pytest.raises(ValueError, match="noise_multiplier"):
        released(Geometry.ball([p]), noise_multiplier=noise_multiplier)


def test_noise_is_drawn_once_for_all_micro_batches():
    p = Parameter(torch.zeros(6))
    gradients = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    geometry = Geometry.ball([p])
    whole = released(geometry, engines=[(Stacked({p: gradients}), 0)], seed=1)
    parts = released(geometry, engines=[(Stacked({p: gradients[i : i + 1]}), 0) for i in range(4)], seed=1)
    torch.testing.assert_close(whole.mean[p], parts.mean[p], rtol=1e-6, atol=1e-7)
    assert whole.noise_variance[p] == parts.noise_variance[p]


def test_the_tail_goes_beyond_what_uniform_words_reach():
    """Of values beyond 5 standard deviations, P(beyond 5.8 | beyond 5) = 1.16% are beyond 5.8.

    Among 20,000 of them the count is 232 +- 15; the false-alarm rate of 232 +- 75, 5 standard deviations, is
    6e-7. A 31-bit uniform number alone would end at 6.56, and be coarse before.
    """
    places = np.arange(20_000)
    values = np.zeros(20_000, dtype=np.float32)
    _add_tail(values, 1.0, np.where(places % 2, -1 - places, places), np.random.default_rng(0))
    assert (np.abs(values) > 5).all()
    assert abs(int((np.abs(values) > 5.8).sum()) - 232) < 75
    assert (np.sign(values) == np.where(places % 2, -1, 1)).all()


def test_values_beyond_the_tail_are_drawn_anew(monkeypatch):
    monkeypatch.setattr(_normals_kernel, "available", lambda: False)
    plain = GaussianNoise(seed=3).normal_(torch.empty(200_000), std=0.5)
    monkeypatch.setattr(_normals, "TAIL", 2.0)
    monkeypatch.setattr(noise_module, "_FAR", 20_000)
    values = GaussianNoise(seed=3).normal_(torch.empty(200_000), std=0.5)
    far = plain.abs() > 1.0
    assert torch.equal(values[~far], plain[~far])
    assert not torch.equal(values[far], plain[far])
    assert (values[far].abs() > 1.0).all()
    # The 9,100 redrawn magnitudes follow the tail they were taken from: two-sample KS, false-alarm rate 1e-4.
    assert stats.ks_2samp(values[far].abs().numpy(), plain[far].abs().numpy()).pvalue > 1e-4


def test_release_scales_every_coordinate_of_one_draw():
    shapes = [(300, 301), (7,), (129, 600), (1,)]  # parts end within blocks, and blocks within parts
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    random = torch.Generator().manual_seed(0)
    scales = [
        torch.rand(shapes[0], generator=random) + 0.1,
        2.0,
        torch.rand(shapes[2][::-1], generator=random).t() + 0.1,
        torch.tensor(3.0),
    ]
    geometry = Geometry({params[0]: torch.ones(shapes[0])}, dict(zip(params, scales, strict=True)))
    sizes = [p.numel() for p in params]
    flat = torch.randn(sum(sizes), generator=random)
    before = flat.clone()
    views = [part.view(p.shape) for part, p in zip(torch.split(flat, sizes), params, strict=True)]
    parts = dict(zip(params, views, strict=True))
    GaussianNoise(5).release_(flat, parts, geometry, std=0.37, share=0.75, key=(3,))

    unit = GaussianNoise(5).add_normal_(torch.zeros(sum(sizes)), 1.0, (3,))
    spread = torch.cat(
        [torch.as_tensor(s).expand(p.shape).reshape(-1) for s, p in zip(scales, params, strict=True)]
    )
    expected = before + 0.37 * spread * unit
    expected[: sizes[0]] += 0.25
    torch.testing.assert_close(flat, expected, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(flat, before + 0.37 * unit, atol=1e-2)
