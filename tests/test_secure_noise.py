"""Secure noise: its law, its exactness, the attacks that it withstands, and that its secret stays one.

The statistical tests give the noise a fixed secret. Right noise fails one with probability ALPHA over the
choice of the secret, and each test also shows wrong noise that it rejects.
"""

import copy
import decimal
import json
import math
import pickle

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.nn import Parameter
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import adamas
from adamas import Geometry, _streams, rules, secure_noise
from adamas._numerics.exact_normals import decided, normal_interval
from adamas._numerics.normals import GROUP
from adamas._streams import SecureGenerator, Seed
from adamas.cli import app
from adamas.engines import ENGINES, Stacked
from adamas.errors import UnsupportedError
from adamas.experiment.training import Settings, train_and_save
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from adamas.rules import RULES
from adamas.sampling import Poisson, Shuffled, TruncatedPoisson
from adamas.secure_noise import _BLOCK, _MARGIN, _STEPS, SecureNoise, _from_bits

ALPHA = 1e-4


def fixed(number):
    """Secure noise whose secret is known, which only a test can have."""
    seed = Seed(secure=True)
    seed._secret = number.to_bytes(32, "big")
    return SecureNoise(seed)


def released(geometry, *, noise=None, engines=(), noise_multiplier=1.3, batch=8.0):
    return privatize(
        engines,
        geometry,
        noise_multiplier=noise_multiplier,
        expected_batch_size=batch,
        noise=noise or fixed(0),
        charge=lambda _: (),
    )


# The law -------------------------------------------------------------------------------------------------


def pmf_p_value(integers, std, mean):
    """Chi-square of integers against the rounded normal law, cells of few values joined."""
    edges = np.arange(math.floor(mean - 4 * std), math.ceil(mean + 4 * std) + 1) + 0.5
    chances = np.diff(np.concatenate([[0], stats.norm(mean, std).cdf(edges), [1]]))
    counts = np.bincount(np.searchsorted(edges, integers), minlength=len(chances))
    return stats.chisquare(counts, chances * len(integers)).pvalue


@pytest.mark.parametrize("offset", [0.0, 0.3, -0.5, 1234.56])
def test_on_a_coarse_grid_every_integer_has_its_chance_at_false_alarm_rate_1e_4(monkeypatch, offset):
    """4 grid steps a deviation. A deviation 2% off, half a step, a cut tail and double steps are rejected."""
    monkeypatch.setattr(secure_noise, "_STEPS", 4.0)
    values = fixed(1).round_(torch.full((300_000,), offset / 4, dtype=torch.float64), std=1.0).numpy() * 4
    integers = np.rint(values)
    assert (values == integers).all()
    assert pmf_p_value(integers, 4.0, offset) > ALPHA
    assert pmf_p_value(integers, 4.08, offset) < ALPHA
    assert pmf_p_value(integers, 4.0, offset + 0.5) < ALPHA
    assert pmf_p_value(np.clip(integers, offset - 12, offset + 12), 4.0, offset) < ALPHA
    assert pmf_p_value(2 * np.rint(integers / 2), 4.0, offset) < ALPHA


def test_values_are_normal_with_their_variance_and_kurtosis_at_false_alarm_rate_3e_4():
    """False-alarm rate: ALPHA for each of three; a deviation 1% (0.5%) off and cut tails are rejected."""
    n = 2_000_000
    values = fixed(2).normal_(torch.empty(n, dtype=torch.float64), std=0.7).numpy() / 0.7
    assert stats.kstest(values, "norm").pvalue > ALPHA
    assert stats.kstest(1.01 * values, "norm").pvalue < ALPHA

    def variance_p_value(x):
        return 2 * stats.norm.sf(abs((x**2).mean() - 1) / math.sqrt(2 / n))

    def kurtosis_p_value(x):  # the variance of x^4 is 105 - 9
        return 2 * stats.norm.sf(abs((x**4).mean() - 3) / math.sqrt(96 / n))

    assert variance_p_value(values) > ALPHA
    assert variance_p_value(1.005 * values) < ALPHA
    assert kurtosis_p_value(values) > ALPHA
    assert kurtosis_p_value(np.clip(values, -3, 3)) < ALPHA


def test_the_tails_are_as_heavy_as_they_should_be_at_false_alarm_rate_3e_4():
    """False-alarm rate: ALPHA for each threshold; tails of half the weight are rejected."""
    values = fixed(3).normal_(torch.empty(6_000_000)).abs()
    for threshold in (3.0, 4.0, 4.5):
        beyond, chance = int((values > threshold).sum()), 2 * stats.norm.sf(threshold)
        assert stats.binomtest(beyond, values.numel(), chance).pvalue > ALPHA
        assert stats.binomtest(beyond // 2, values.numel(), chance).pvalue < ALPHA


def correlation_p_value(a, b):
    return 2 * stats.norm.sf(abs(float(np.dot(a, b)) / math.sqrt(len(a))))


def test_pairs_blocks_and_draws_are_independent_at_false_alarm_rate_1e_3():
    """False-alarm rate: ALPHA for each of 10 statistics; a share of 3% is rejected. Squares too."""
    noise = fixed(4)
    first = noise.normal_(torch.empty(3 * _BLOCK, dtype=torch.float64)).numpy()
    second = noise.normal_(torch.empty(3 * _BLOCK, dtype=torch.float64)).numpy()
    half = first[:_BLOCK].reshape(2, -1)  # the cosines and the sines of a block
    pairs = [(half[0], half[1]), (first[:_BLOCK], first[_BLOCK : 2 * _BLOCK]), (first, second)]
    pairs += [(first[1:], first[:-1]), (first[:_BLOCK], first[2 * _BLOCK :])]
    for a, b in pairs:
        assert correlation_p_value(a, b) > ALPHA
        assert correlation_p_value((a**2 - 1) / math.sqrt(2), (b**2 - 1) / math.sqrt(2)) > ALPHA
    assert correlation_p_value(first, second + 0.03 * first) < ALPHA


def test_values_depend_on_the_secret_and_the_draw_and_not_on_threads():
    before = torch.get_num_threads()
    drawn = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            noise = fixed(5)
            drawn.append([noise.normal_(torch.empty(n)) for n in (5, 4 * _BLOCK + 17, _BLOCK)])
    finally:
        torch.set_num_threads(before)
    for other in drawn[1:]:
        assert all(torch.equal(a, b) for a, b in zip(drawn[0], other, strict=True))
    heads = [part[:5].tolist() for piece in drawn[0] for part in piece.split(_BLOCK)]
    heads += [SecureNoise().normal_(torch.empty(5)).tolist() for _ in range(2)]
    assert len({tuple(head) for head in heads}) == len(heads)


# Exactness -----------------------------------------------------------------------------------------------


def oracle(first, second, following, sine):
    """The normal value of these bits and 64 unseen ones that are halves, by mpmath and not by our code."""
    with mpmath.workprec(600):
        bits = 63 + 32 * len(following)
        for a, b in zip(following[::2], following[1::2], strict=True):
            first, second = (first << 64) + a, (second << 64) + b
        radius = mpmath.sqrt(-2 * mpmath.log(abs(mpmath.mpf(2 * first + 1)) / mpmath.mpf(2) ** (bits + 1)))
        angle = mpmath.pi * mpmath.mpf(2 * second + 1) / mpmath.mpf(2) ** (bits + 1)
        return radius * (mpmath.sin(angle) if sine else mpmath.cos(angle))


EDGES = [0, -1, 1, 2, -(1 << 63), (1 << 63) - 1, 1 << 62, -(1 << 62), 1 << 43, (1 << 63) - (1 << 42)]


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.sampled_from(EDGES), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.one_of(st.sampled_from(EDGES), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.lists(st.tuples(*[st.integers(0, (1 << 64) - 1)] * 2), max_size=2),
    st.booleans(),
)
def test_the_interval_holds_the_value_and_is_narrow(first, second, following, sine):
    following = [word for pair in following for word in pair]
    value, width = normal_interval(first, second, following, sine=sine)
    if width is None:  # all bits of the radius so far are 0
        assert first in (0, -1)
        return
    with mpmath.workprec(600):
        right = oracle(first, second, following, sine)
        assert abs(mpmath.mpf(str(value)) - right) <= mpmath.mpf(str(width))
        radius_bits = 63 + 32 * len(following)
        if 2**40 < abs(first) < 2**63 - 2**40:
            assert float(width) < 2.0 ** -(radius_bits - 30)


def test_float64_is_far_closer_than_the_margin():
    rng = np.random.default_rng(0)
    bits = rng.integers(-(1 << 63), 1 << 63, size=4000, dtype=np.int64)
    bits[:4] = [
        1 << 44,
        -(1 << 44),
        (1 << 63) - (1 << 43) - 2048,
        1 << 62,
    ]  # near both ends of what it may do
    values, unsure = _from_bits(bits)
    assert not unsure.size
    worst = max(
        abs(float(value - _STEPS * oracle(int(bits[i % 2000]), int(bits[2000 + i % 2000]), [], i >= 2000)))
        for i, value in enumerate(values)
    )
    assert worst < _MARGIN / 8


def test_radii_that_float64_cannot_do_are_listed():
    bits = np.array([0, -1, 1 << 42, (1 << 63) - 1, -(1 << 63), 1 << 62] + [1 << 61] * 6, dtype=np.int64)
    _, unsure = _from_bits(bits)
    assert unsure.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize("distance", [1e-9, -1e-9, 1e-30, -1e-30, 1e-45, -1e-45])
def test_bits_are_added_until_one_integer_is_left(sine, distance):
    """Strings of bits whose value lies this close to a half-integer, and the integer that mpmath finds."""
    rng = np.random.default_rng(0)
    first, second = (int(x) for x in rng.integers(1 << 40, 1 << 60, size=2))
    words = [int(x) for x in rng.integers(0, 1 << 64, size=64, dtype=np.uint64)]
    asked = []

    def more(count):
        asked.append(count)
        return np.array(words[:count], dtype=np.uint64)

    with mpmath.workprec(1200):
        value = _STEPS * oracle(first, second, words, sine)
        # The string is moved: an angle that puts the value where it is wanted, by Newton's method.
        radius = mpmath.sqrt(value**2 + (_STEPS * oracle(first, second, words, not sine)) ** 2)
        wanted = mpmath.floor(value) + mpmath.mpf(1) / 2 + mpmath.mpf(distance)
        angle = mpmath.asin(wanted / radius) if sine else mpmath.acos(wanted / radius)
        turns = int(mpmath.floor(angle / mpmath.pi * mpmath.mpf(2) ** (63 + 64 * 32)))
        second, rest = turns >> (64 * 32), turns & ((1 << (64 * 32)) - 1)
        for k in range(32):
            words[2 * k + 1] = (rest >> (64 * (31 - k))) & ((1 << 64) - 1)
        final = _STEPS * oracle(first, second, words, sine)
        assert mpmath.sign(final - mpmath.floor(final) - mpmath.mpf(1) / 2) == math.copysign(1, distance)
        assert decided(first, second, more, steps=_STEPS, sine=sine) == int(mpmath.nint(final))
    assert len(asked) == (0 if abs(distance) > 1e-12 else 1 if abs(distance) > 1e-31 else 2)


def test_a_radius_whose_bits_are_all_0_waits_for_more():
    def more(count):
        return np.array(([0, 1 << 63] * count)[:count], dtype=np.uint64)  # 0 for the radius at first

    def later(count):
        words = more(count)
        words[2::2] = 1 << 20
        return words

    integer = decided(0, 0, later, steps=_STEPS, sine=False)
    right = _STEPS * float(oracle(0, 0, [int(w) for w in later(8)], False))
    assert abs(integer - right) < 1
    assert right > 11 * _STEPS  # where no 64-bit uniform value reaches


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decimal_arithmetic_alone_makes_the_same_release(monkeypatch, dtype):
    x = torch.randn(300, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 50
    fast = fixed(6).round_(x.clone(), std=1.3)
    monkeypatch.setattr(secure_noise, "_MARGIN", 0.5)  # float64 is trusted with nothing
    assert torch.equal(fixed(6).round_(x.clone(), std=1.3), fast)


def integers_of(noise, draw, x, step):
    """Computes by mpmath what the first block of a draw must round to."""
    n = len(x)
    pairs = (n + 1) // 2
    bits = np.frombuffer(noise.seed.stream("secure noise", draw, 0, count=16 * pairs), dtype="<i8").tolist()
    values = [oracle(bits[i % pairs], bits[pairs + i % pairs], [], i >= pairs) for i in range(n)]
    with mpmath.workprec(200):
        sums = [mpmath.mpf(float(x[i]) / step) + _STEPS * values[i] for i in range(n)]
        return [int(mpmath.nint(each)) for each in sums], [float(each - mpmath.floor(each)) for each in sums]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_release_is_the_rounded_sum_of_value_and_noise(dtype):
    """Against mpmath: h [(x + std xi) / h], for values between grid points and many steps away."""
    x = torch.randn(201, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 1e3
    noise, step = fixed(7), 0.37 / _STEPS
    right, _ = integers_of(noise, 0, x, step)
    out = noise.round_(x.clone(), std=0.37)
    assert torch.equal(out, torch.tensor([k * step for k in right], dtype=torch.float64).to(dtype))


def test_sums_next_to_a_middle_are_rounded_as_real_numbers_are():
    """1e-11 of a step from the middle of two integers, which float64 itself does not see."""
    noise, step = fixed(16), 1 / _STEPS
    _, rest = integers_of(noise, 0, torch.zeros(200), step)
    aside = torch.tensor([1e-11, -1e-11], dtype=torch.float64).repeat(100)
    x = (0.5 - torch.tensor(rest, dtype=torch.float64) + aside) * step
    right, places = integers_of(noise, 0, x, step)
    assert np.allclose(places, 0.5, atol=1e-10, rtol=0)
    assert noise.round_(x.clone(), std=1.0).tolist() == [k * step for k in right]


def test_the_users_decimal_context_does_not_matter():
    right = decided(1 << 60, 1 << 59, lambda words: np.zeros(words, dtype=np.uint64), steps=_STEPS, sine=True)
    with decimal.localcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP)):
        secure_noise._check_functions.__wrapped__()
        assert (
            decided(1 << 60, 1 << 59, lambda words: np.zeros(words, dtype=np.uint64), steps=_STEPS, sine=True)
            == right
        )
    assert abs(right - float(_STEPS * oracle(1 << 60, 1 << 59, [], True))) <= 0.5


def test_inexact_functions_are_refused(monkeypatch):
    secure_noise._check_functions.__wrapped__()
    right = torch.cos

    def coarse(x, out):
        return out.copy_(right(x).float())

    monkeypatch.setattr(torch, "cos", coarse)
    with pytest.raises(UnsupportedError, match="inexactly"):
        secure_noise._check_functions.__wrapped__()


# Attacks -------------------------------------------------------------------------------------------------


def impossible_for_one(released):
    """The attack on last bits (Haney et al. 2022), on a float32 release of a value that is 0 or 1.

    1 + noise is a float32 sum: where it is below 1/2, the noise was between -3/2 and -1/2, both terms were
    multiples of 2^-24, and so is the sum. A smaller last bit proves that the value was 0.
    """
    small = released.abs() < 0.5
    scaled = released.double() * 2**24
    return small & (scaled != scaled.round())


@pytest.fixture(scope="module")
def worlds():
    """100,000 scalar queries of value 0 and of value 1, with default and with secure noise of deviation 1."""
    n = 100_000
    naive, secure = GaussianNoise(0), fixed(8)
    return {
        "naive": [naive.add_normal_(torch.full((n,), value), 1.0) for value in (0.0, 1.0)],
        "secure": [secure.round_(torch.full((n,), value), 1.0) for value in (0.0, 1.0)],
    }


def test_the_attack_on_last_bits_proves_a_value_against_the_default_noise(worlds):
    zero, one = worlds["naive"]
    assert impossible_for_one(zero).float().mean() > 0.2  # delta would have to be 0.2 for any epsilon
    assert not impossible_for_one(one).any()


def test_the_attack_on_last_bits_proves_nothing_against_secure_noise(worlds):
    for values in worlds["secure"]:
        assert not impossible_for_one(values).any()


def share_that_fits(x, y):
    """The attack on the support (Jin et al. 2022): do two values come from one pair of 31-bit uniform ones?

    The radius of a pair gives its uniform number, which is a half more than a multiple of 2^-31. The values
    show it where it is small. Returns the share of pairs for which it is so to a tenth: 20% for others.
    """
    square = x.double() ** 2 + y.double() ** 2
    far = square > 23
    number = torch.exp(-square[far] / 2) * 2**31 - 0.5
    return float(((number - number.round()).abs() < 0.1).double().mean())


@pytest.mark.slow
def test_the_attack_on_the_support_tells_values_apart_against_the_default_noise_only():
    """With 16,000,000 pairs, of which 1e-5 are far enough: 160 of them, whose share is known to 3%.

    The default makes values half a group apart from one pair, secure noise those half a block apart.
    """
    n = 1000 * _BLOCK
    for value in (0.0, 1.0):
        pairs = GaussianNoise(2).add_normal_(torch.full((n,), value), 1.0).view(-1, 2, GROUP // 2)
        x, y = pairs[:, 0], pairs[:, 1]
        assert share_that_fits(x - value, y - value) > 0.8
        assert share_that_fits(x - (1 - value), y - (1 - value)) < 0.35
        pairs = fixed(9).round_(torch.full((n,), value), 1.0).view(-1, 2, _BLOCK // 2)
        x, y = pairs[:, 0], pairs[:, 1]
        for guess in (0.0, 1.0):
            assert 0.05 < share_that_fits(x - guess, y - guess) < 0.35


@pytest.mark.parametrize("value", [0.0, 1.0, 1 / 3, -1e-12, 1e5])
def test_low_bits_are_uniform_whatever_the_value_at_false_alarm_rate_1e_4(value):
    """The grid steps modulo 64. A quarter of a percent of even numbers too much is rejected."""
    n = 1_000_000
    out = fixed(10).round_(torch.full((n,), value, dtype=torch.float64), 1.0).numpy() * _STEPS
    steps = np.rint(out).astype(np.int64)
    assert (out == steps).all()
    assert stats.chisquare(np.bincount(steps % 64, minlength=64)).pvalue > ALPHA
    biased = np.where(np.arange(n) % 100 == 0, steps & ~1, steps)
    assert stats.chisquare(np.bincount(biased % 64, minlength=64)).pvalue < ALPHA


def test_a_zero_has_no_sign():
    """-0 would say that the value was between -h/2 and 0, and the noise too."""

    def no_noise(bits):
        return np.full(len(bits), -0.2), np.empty(0, dtype=np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure_noise, "_from_bits", no_noise)
        out = fixed(0).round_(torch.full((10,), -0.2 / _STEPS, dtype=torch.float64), 1.0)
    assert (out == 0).all()
    assert not torch.signbit(out).any()


@pytest.mark.parametrize("examples", [0, 1, 5])
def test_the_grid_does_not_move_with_the_data_around_a_center(examples):
    generator = torch.Generator().manual_seed(examples)
    p, q = Parameter(torch.zeros(500, dtype=torch.float64)), Parameter(torch.zeros(3, 20))
    scale = {p: torch.rand(500, generator=generator, dtype=torch.float64) + 0.1, q: 0.7}
    center = {p: torch.randn(500, generator=generator, dtype=torch.float64) * 0.01}
    gradients = {x: torch.randn(examples, *x.shape, generator=generator, dtype=x.dtype) for x in (p, q)}
    geometry = Geometry(center, scale)
    release = released(geometry, engines=[(Stacked(gradients), 0)] if examples else [])
    steps = geometry.whiten(p, release.mean[p]).mul_(8.0 * _STEPS / 1.3).detach()
    # The center was added to a multiple of the step in float64, at 1e-16 of about a million steps.
    assert (steps - steps.round()).abs().max() < 1e-6
    wrong = geometry.whiten(p, release.mean[p] + 1e-3 * center[p]).mul_(8.0 * _STEPS / 1.3).detach()
    assert (wrong - wrong.round()).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_little_noise_shows_the_clipped_sum_around_its_center(dtype):
    generator = torch.Generator().manual_seed(0)
    p = Parameter(torch.zeros(4, 5, dtype=dtype))
    geometry = Geometry(
        {p: torch.randn(4, 5, generator=generator, dtype=dtype)},
        {p: torch.rand(4, 5, generator=generator, dtype=dtype) + 0.1},
    )
    gradients = {p: torch.randn(6, 4, 5, generator=generator, dtype=dtype)}
    release = released(geometry, engines=[(Stacked(gradients), 0)], noise_multiplier=0.02, batch=8.0)
    sums = geometry.whiten(p, release.mean[p]).detach() * 8.0
    assert (sums - adamas.clipped_sum(gradients, geometry)[p]).abs().max() < 0.14
    assert (sums - adamas.clipped_sum(gradients, geometry)[p]).abs().max() > 2e-3
    empty = released(geometry, noise_multiplier=0.02, batch=8.0)
    assert geometry.whiten(p, empty.mean[p]).abs().max() < 0.02


# Sensitivity and variance --------------------------------------------------------------------------------


def sums_before_noise(gradients, geometry, batch):
    """The whitened sums that the noise is added to, center included, in float64."""
    found = []
    noise = fixed(0)

    def seen(flat, parts, geometry, std, share, key):
        for p, part in parts.items():
            center, scale = geometry.center_of(p), torch.as_tensor(geometry.scale[p]).double()
            x = part.double() - (0 if center is None else share * torch.as_tensor(center).double())
            found.append((x / scale * batch).flatten())

    noise.release_ = seen
    released(geometry, engines=[(Stacked(gradients), 0)], noise=noise, batch=batch)
    return torch.cat(found)


@pytest.mark.parametrize("kind", ["identical", "random", "cancelling"])
@pytest.mark.parametrize("centered", [False, True])
def test_one_example_moves_the_float32_sum_by_at_most_1(kind, centered):
    """All examples on one point are the worst case: the sum grows as long as it can, and rounds the most."""
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


def test_without_the_smaller_ball_rounding_would_move_it_by_more(monkeypatch):
    monkeypatch.setattr("adamas.privatize._ROUNDING", 0.0)
    p = Parameter(torch.zeros(300))
    rows = torch.randn(1, 300, generator=torch.Generator().manual_seed(0)).expand(1000, 300).contiguous()
    whole, rest = (sums_before_noise({p: rows[:n]}, Geometry.ball([p]), 1000.0) for n in (1000, 999))
    assert float((whole - rest).norm()) > 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_stated_variance_is_that_of_what_was_added_at_false_alarm_rate_1e_4(dtype, monkeypatch):
    """On a grid of two steps a deviation, where rounding is 2% of the variance; without it, rejected."""
    monkeypatch.setattr(secure_noise, "_STEPS", 2.0)
    monkeypatch.setattr(SecureNoise, "variance_factor", 1 + 1 / 48)
    n = 200_000
    p = Parameter(torch.zeros(n, dtype=dtype))
    release = released(Geometry.ball([p], radius=2.0))
    squares = float(release.mean[p].double().square().sum())
    stated = release.noise_variance[p]
    for variance, right in ((stated, True), ((2.0 * 1.3 / 8) ** 2, False)):
        below = stats.chi2(n).cdf(squares / variance)
        assert (2 * min(below, 1 - below) > ALPHA) == right


def test_the_stated_variance_has_the_grid_in_it():
    p, q = Parameter(torch.zeros(3)), Parameter(torch.zeros(2, dtype=torch.float64))
    scale = torch.tensor([0.5, 3.0], dtype=torch.float64)
    stated = released(Geometry(None, {p: 2.0, q: scale})).noise_variance
    factor = 1 + 2.0**-40 / 12
    assert stated[p] == pytest.approx((2.0 * 1.3 / 8) ** 2 * factor, rel=1e-15)
    assert torch.allclose(stated[q], (scale * 1.3 / 8) ** 2 * factor, rtol=1e-15, atol=0)


def test_without_noise_nothing_is_drawn():
    p = Parameter(torch.zeros(4))
    noise = fixed(0)
    release = released(Geometry({p: 0.5}, {p: 1.0}), noise=noise, noise_multiplier=0.0)
    assert noise.draws == 0
    assert release.mean[p].tolist() == [0.5] * 4


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (2, 3, 4), (_BLOCK + 1,)])
def test_every_shape_is_released_in_place(shape):
    out = torch.full(shape, 3.0)
    assert fixed(0).round_(out, 0.1) is out
    assert not out.numel() or ((out - 3).abs() < 0.1 * 7).all()


# Sampling ------------------------------------------------------------------------------------------------


def test_coins_are_never_more_likely_than_the_rate():
    for byte, value in ((b"\0", 2.0**-53), (b"\xff", 1.0)):
        assert SecureGenerator(lambda call, count, byte=byte: byte * count).random(3).tolist() == [value] * 3


def test_secure_samples_are_poisson_at_false_alarm_rate_2e_4():
    """False-alarm rate: ALPHA for each of two; a rate 5% off is rejected."""
    sampler = Poisson(1000, 100, fixed(11).seed)
    rows = np.zeros((300, 1000), dtype=bool)
    for step in range(300):
        rows[step, sampler.indices(step).indices] = True
    assert stats.binomtest(int(rows.sum()), rows.size, 0.1).pvalue > ALPHA
    assert stats.binomtest(int(rows.sum()), rows.size, 0.105).pvalue < ALPHA
    sizes = rows.sum(1)
    spread = ((sizes - 100) ** 2).sum() / 90
    assert 2 * min(stats.chi2(300).cdf(spread), stats.chi2(300).sf(spread)) > ALPHA


def test_secure_permutations_and_choices_are_uniform_at_false_alarm_rate_2e_4():
    generator = fixed(12).seed.sampling_generator("sampling", 0)
    orders = [tuple(generator.permutation(3)) for _ in range(6000)]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > ALPHA
    pairs = [tuple(sorted(generator.choice(np.array([5, 6, 7, 8]), 2, replace=False))) for _ in range(6000)]
    counts = [pairs.count(pair) for pair in sorted(set(pairs))]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > ALPHA


def test_every_sampler_draws_from_the_stream(monkeypatch):
    seed = fixed(13).seed
    monkeypatch.setattr(Seed, "generator", None)  # NumPy's
    assert len(Poisson(50, 10, seed).indices(0).indices) < 50
    draw = TruncatedPoisson(50, 10, 10, seed).indices(0)
    assert len(draw.indices) == 10
    shuffled = Shuffled(50, 10, seed)
    assert sorted(np.concatenate([shuffled.indices(i).indices for i in range(5)])) == list(range(50))


@pytest.mark.parametrize("cipher", [True, False])
def test_streams_are_prefixes_of_longer_ones_and_differ_by_place(monkeypatch, cipher):
    if not cipher:
        monkeypatch.setattr(_streams, "ciphers", None)
    else:
        pytest.importorskip("cryptography")
    seed = fixed(14).seed
    long = seed.stream("a", 1, count=5000)
    assert seed.stream("a", 1, count=77) == long[:77]
    others = [seed.stream("a", 2, count=77), seed.stream("b", 1, count=77), seed.stream("a", 1, 0, count=77)]
    assert len({long[:77], *others}) == 4
    counts = np.bincount(np.frombuffer(seed.stream("c", count=200_000), dtype=np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > ALPHA


def test_without_cryptography_the_noise_is_as_good_at_false_alarm_rate_1e_4(monkeypatch):
    monkeypatch.setattr(_streams, "ciphers", None)
    values = fixed(15).normal_(torch.empty(100_000, dtype=torch.float64)).numpy()
    assert stats.kstest(values, "norm").pvalue > ALPHA
    assert stats.kstest(1.05 * values, "norm").pvalue < ALPHA


# Runs ----------------------------------------------------------------------------------------------------


def make_run(rule="adam-bc", *, noise="secure", **options):
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    made = RULES[rule](model.parameters()) if isinstance(rule, str) else rule(model.parameters())
    return adamas.make_private(
        model,
        made,
        TensorDataset(x, (x.sum(1) > 0).long()),
        lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        **{"batch_size": 10, "steps": 4, "noise_multiplier": 1.0, "delta": 1e-3, "progress": False}
        | {"noise": noise}
        | options,
    )


@pytest.mark.parametrize("rule", [*RULES, lambda params: torch.optim.Adam(params)])
def test_every_rule_trains(rule):
    run = make_run(rule)
    before = [p.detach().clone() for p in run.model.parameters()]
    for _ in run:
        pass
    after = list(run.model.parameters())
    assert all(p.isfinite().all() for p in after)
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert run.noise.draws >= 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("micro_batch_size", [None, 3])
def test_releases_of_a_run_are_on_the_grid(engine, micro_batch_size):
    run = make_run("sgd", engine=engine, micro_batch_size=micro_batch_size, clip_norm=0.5)
    for step in run:
        for mean in step.release.mean.values():
            steps = mean.double() / (0.5 * 1.0 / 10) * _STEPS
            assert ((steps - steps.round()).abs() <= steps.abs() * 2.0**-24).all()  # rounded to float32
    assert run.noise.draws == 4


def test_epsilon_is_that_of_the_same_run_with_default_noise():
    secure, default = make_run(), make_run(noise="reproducible")
    for run in (secure, default):
        for _ in run:
            pass
    assert secure.epsilon() == default.epsilon()
    assert secure.ledger.entries == default.ledger.entries


@pytest.mark.parametrize("sampling", ["poisson", "truncated-poisson", "shuffled"])
def test_every_sampling_runs(sampling):
    run = make_run(sampling=sampling, max_batch_size=12 if sampling == "truncated-poisson" else None)
    assert len([step for step in run]) == 4


def test_a_seed_is_refused():
    with pytest.raises(ValueError, match=r"seed=None with noise='secure', got seed=3.*Leave seed= out"):
        make_run(seed=3)
    with pytest.raises(ValueError, match="secure seed"):
        SecureNoise(Seed(3))
    with pytest.raises(ValueError, match="secure seed"):
        SecureNoise(Seed())


def test_unknown_noise_is_refused():
    with pytest.raises(ValueError, match="noise='safe' to be one of 'reproducible', 'secure'"):
        make_run(noise="safe")


def test_statements_say_which_noise_it_was():
    assert "The noise is secure: the exact Gaussian mechanism" in make_run().privacy_statement()
    assert "The noise is reproducible" in make_run(noise="reproducible").privacy_statement()


def test_a_secure_run_resumes_with_a_new_secret_and_as_secure_only():
    run = make_run()
    steps = iter(run)
    next(steps), next(steps)
    state = copy.deepcopy(run.state_dict())
    steps.close()
    resumed = make_run()
    resumed.load_state_dict(state)
    assert [step.number for step in resumed] == [3, 4]
    assert resumed.noise.seed._secret != run.noise.seed._secret
    with pytest.raises(ValueError, match="noise='reproducible'"):
        make_run(noise="reproducible").load_state_dict(state)


def test_a_state_without_the_name_of_its_noise_is_refused():
    state = make_run(noise="reproducible", seed=1).state_dict()
    del state["settings"]["noise"]
    with pytest.raises(ValueError, match="noise='reproducible'"):
        make_run(noise="reproducible", seed=1).load_state_dict(state)
    state["settings"]["seed"] = None
    with pytest.raises(ValueError, match="noise='secure'"):
        make_run().load_state_dict(state)


def forms(secret):
    """How the bytes of a secret might be written."""
    number = int.from_bytes(secret, "big")
    texts = [
        secret.hex(),
        str(number),
        str(int.from_bytes(secret, "little")),
        repr(secret),
        str(list(secret)),
    ]
    return [secret, secret[::-1], secret[:16], secret[16:], *(text.encode() for text in texts)]


def test_the_secret_is_in_no_state_repr_or_pickle(capsys, caplog):
    run = make_run(ema=0.9)
    for _ in run:
        pass
    secret = run.noise.seed._secret
    texts = [repr(run), repr(run.noise), repr(run.noise.seed), str(vars(run)), run.privacy_statement()]
    written = pickle.dumps(run.state_dict()) + "".join(texts).encode() + caplog.text.encode()
    written += "".join(capsys.readouterr()).encode()
    for form in forms(secret):
        assert form not in written
    assert "seed" not in run.state_dict()["noise"]
    assert run.state_dict()["settings"]["seed"] is None
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="secret seed"):
            copied(run.noise.seed)
    with pytest.raises(TypeError, match="secret seed"):
        pickle.dumps(run.noise)


def test_the_secret_is_in_no_file(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    secrets = []
    make = Seed.__init__

    def remember(self, *arguments, **options):
        make(self, *arguments, **options)
        secrets.append(self._secret)

    monkeypatch.setattr(Seed, "__init__", remember)
    chosen = Settings(
        data="digits", model="linear", rule="sgd", batch_size=64, delta=1e-5, steps=3, noise="secure",
        noise_multiplier=1.0,
    )  # fmt: skip
    result = train_and_save(chosen, tmp_path / "out", progress=False, diagnose=True)
    files = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {"result.json", "ledger.json", "model.safetensors"}
    written = b"".join(file.read_bytes() for file in files)
    assert secrets
    for secret in secrets:
        if secret != bytes(32):  # the public seed 0 of the layout check
            assert not any(form in written for form in forms(secret))
    assert result["noise"] == result["settings"]["noise"] == "secure"
    assert result["settings"]["seed"] is None
    assert "note" not in result
    assert "The noise is secure" in result["privacy"]


def test_settings_refuse_a_seed_before_anything_is_loaded():
    common = {"data": "digits", "model": "linear", "rule": "sgd", "batch_size": 64, "delta": 1e-5}
    with pytest.raises(ValueError, match="seed=None with noise='secure'"):
        Settings(**common, noise="secure", seed=0)
    with pytest.raises(ValueError, match="noise="):
        Settings(**common, noise="discrete")


def test_the_command_line_trains_securely(tmp_path):
    pytest.importorskip("sklearn")
    arguments = ["train", "--model", "linear", "--rule", "sgd", "--noise-multiplier", "1", "--steps", "2"]
    arguments += ["--noise", "secure", "--no-progress"]
    out = tmp_path / "out"
    done = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "secure" in done.output
    assert json.loads((out / "result.json").read_text())["noise"] == "secure"
    refused = CliRunner().invoke(app, [*arguments, "--seed", "1", "--out", str(tmp_path / "other")])
    assert refused.exit_code != 0
    assert not (tmp_path / "other").exists()


def test_sgd_with_secure_noise_learns():
    torch.manual_seed(0)
    x = torch.randn(2000, 4)
    model = torch.nn.Linear(4, 2)
    run = adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=1.0),
        TensorDataset(x, (x.sum(1) > 0).long()),
        lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        **{"batch_size": 200, "steps": 30, "noise_multiplier": 1.0, "delta": 1e-4},
        noise="secure",
        progress=False,
    )
    for _ in run:
        pass
    assert float((model(x).argmax(1) == (x.sum(1) > 0)).float().mean()) > 0.9
