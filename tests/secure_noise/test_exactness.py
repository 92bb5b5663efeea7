"""Secure noise is rounded exactly, as real numbers would be: float64 and decimal results match mpmath."""

import decimal
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adamas import secure_noise
from adamas._numerics.exact_normals import decided, normal_interval
from adamas.errors import UnsupportedError
from adamas.secure_noise import _MARGIN, _STEPS, _from_bits
from tests.support.secure_noises import fixed


def oracle(first, second, following, sine):
    """Computes by mpmath the normal value of these bits, with the midpoint for all bits that follow."""
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
def test_the_interval_contains_the_value_and_is_narrow(first, second, following, sine):
    following = [word for pair in following for word in pair]
    value, width = normal_interval(first, second, following, sine=sine)
    if width is None:  # all bits of the radius are 0 so far
        assert first in (0, -1)
        return
    with mpmath.workprec(600):
        right = oracle(first, second, following, sine)
        assert abs(mpmath.mpf(str(value)) - right) <= mpmath.mpf(str(width))
        radius_bits = 63 + 32 * len(following)
        if 2**40 < abs(first) < 2**63 - 2**40:
            assert float(width) < 2.0 ** -(radius_bits - 30)


def test_the_error_of_float64_is_far_below_the_margin():
    rng = np.random.default_rng(0)
    bits = rng.integers(-(1 << 63), 1 << 63, size=4000, dtype=np.int64)
    bits[:4] = [1 << 44, -(1 << 44), (1 << 63) - (1 << 43) - 2048, 1 << 62]  # near the ends of its range
    values, unsure = _from_bits(bits)
    assert not unsure.size
    worst = max(
        abs(float(value - _STEPS * oracle(int(bits[i % 2000]), int(bits[2000 + i % 2000]), [], i >= 2000)))
        for i, value in enumerate(values)
    )
    assert worst < _MARGIN / 8


def test_radii_beyond_the_range_of_float64_are_listed():
    bits = np.array([0, -1, 1 << 42, (1 << 63) - 1, -(1 << 63), 1 << 62] + [1 << 61] * 6, dtype=np.int64)
    _, unsure = _from_bits(bits)
    assert unsure.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sine", [False, True])
@pytest.mark.parametrize("distance", [1e-9, -1e-9, 1e-30, -1e-30, 1e-45, -1e-45])
def test_bits_are_drawn_until_one_integer_remains(sine, distance):
    """Constructs bits whose value lies this close to a half-integer, and compares with mpmath."""
    rng = np.random.default_rng(0)
    first, second = (int(x) for x in rng.integers(1 << 40, 1 << 60, size=2))
    words = [int(x) for x in rng.integers(0, 1 << 64, size=64, dtype=np.uint64)]
    asked = []

    def more(count):
        asked.append(count)
        return np.array(words[:count], dtype=np.uint64)

    with mpmath.workprec(1200):
        value = _STEPS * oracle(first, second, words, sine)
        # Replace the angle by the one that puts the value where it is wanted.
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


def test_a_radius_of_zero_bits_draws_more():
    def more(count):
        return np.array(([0, 1 << 63] * count)[:count], dtype=np.uint64)  # the first bits of the radius are 0

    def later(count):
        words = more(count)
        words[2::2] = 1 << 20
        return words

    integer = decided(0, 0, later, steps=_STEPS, sine=False)
    right = _STEPS * float(oracle(0, 0, [int(w) for w in later(8)], False))
    assert abs(integer - right) < 1
    assert right > 11 * _STEPS  # beyond the reach of any 64-bit uniform value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_decimal_arithmetic_alone_gives_the_same_release(monkeypatch, dtype):
    x = torch.randn(300, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 50
    fast = fixed(6).round_(x.clone(), std=1.3)
    monkeypatch.setattr(secure_noise, "_MARGIN", 0.5)  # no float64 result is trusted
    assert torch.equal(fixed(6).round_(x.clone(), std=1.3), fast)


def integers_of(noise, draw, x, step):
    """Computes by mpmath the integers that the first block of a draw rounds to, and the fractional parts."""
    n = len(x)
    pairs = (n + 1) // 2
    bits = np.frombuffer(noise.seed.stream("secure noise", draw, 0, count=16 * pairs), dtype="<i8").tolist()
    values = [oracle(bits[i % pairs], bits[pairs + i % pairs], [], i >= pairs) for i in range(n)]
    with mpmath.workprec(200):
        sums = [mpmath.mpf(float(x[i]) / step) + _STEPS * values[i] for i in range(n)]
        return [int(mpmath.nint(each)) for each in sums], [float(each - mpmath.floor(each)) for each in sums]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_release_is_the_rounded_sum_of_value_and_noise(dtype):
    """Compares with h [(x + std xi) / h] by mpmath, for values between grid points and many steps away."""
    x = torch.randn(201, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 1e3
    noise, step = fixed(7), 0.37 / _STEPS
    right, _ = integers_of(noise, 0, x, step)
    out = noise.round_(x.clone(), std=0.37)
    assert torch.equal(out, torch.tensor([k * step for k in right], dtype=torch.float64).to(dtype))


def test_sums_next_to_a_half_integer_are_rounded_exactly():
    """The sums are 1e-11 of a step from a half-integer, which float64 cannot resolve."""
    noise, step = fixed(16), 1 / _STEPS
    _, rest = integers_of(noise, 0, torch.zeros(200), step)
    aside = torch.tensor([1e-11, -1e-11], dtype=torch.float64).repeat(100)
    x = (0.5 - torch.tensor(rest, dtype=torch.float64) + aside) * step
    right, places = integers_of(noise, 0, x, step)
    assert np.allclose(places, 0.5, atol=1e-10, rtol=0)
    assert noise.round_(x.clone(), std=1.0).tolist() == [k * step for k in right]


def test_the_decimal_context_of_the_caller_has_no_effect():
    def more(words):
        return np.zeros(words, dtype=np.uint64)

    def integer():
        return decided(1 << 60, 1 << 59, more, steps=_STEPS, sine=True)

    right = integer()
    with decimal.localcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP)):
        secure_noise._check_functions.__wrapped__()
        assert integer() == right
    assert abs(right - float(_STEPS * oracle(1 << 60, 1 << 59, [], True))) <= 0.5


def test_inexact_functions_are_refused(monkeypatch):
    secure_noise._check_functions.__wrapped__()
    right = torch.cos

    def coarse(x, out):
        return out.copy_(right(x).float())

    monkeypatch.setattr(torch, "cos", coarse)
    with pytest.raises(UnsupportedError, match="inexactly"):
        secure_noise._check_functions.__wrapped__()
