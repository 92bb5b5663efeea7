"""Floating-point attacks succeed against reproducible noise and fail against secure noise."""

import numpy as np
import pytest
import torch
from scipy import stats

from adamas import secure_noise
from adamas._numerics.normals import GROUP
from adamas.noise import GaussianNoise
from adamas.secure_noise import _BLOCK, _STEPS
from tests.support.p_values import ALPHA
from tests.support.secure_noises import fixed


def impossible_for_one(released):
    """Attacks the last bits (Haney et al. 2022) of a float32 release of a value that is 0 or 1.

    Take a sum 1 + noise in float32 that is below 1/2 in magnitude. The noise was between -3/2 and -1/2, so
    both terms are multiples of 2^-24, and so is the sum. A smaller last bit proves that the value was 0.
    """
    small = released.abs() < 0.5
    scaled = released.double() * 2**24
    return small & (scaled != scaled.round())


@pytest.fixture(scope="module")
def worlds():
    """Releases 100,000 zeros and 100,000 ones, with reproducible and with secure noise of deviation 1."""
    n = 100_000
    naive, secure = GaussianNoise(0), fixed(8)
    return {
        "naive": [naive.add_normal_(torch.full((n,), value), 1.0) for value in (0.0, 1.0)],
        "secure": [secure.round_(torch.full((n,), value), 1.0) for value in (0.0, 1.0)],
    }


def test_last_bits_of_reproducible_noise_prove_a_value(worlds):
    zero, one = worlds["naive"]
    assert impossible_for_one(zero).float().mean() > 0.2  # so delta >= 0.2 for every epsilon
    assert not impossible_for_one(one).any()


def test_last_bits_of_secure_noise_prove_nothing(worlds):
    for values in worlds["secure"]:
        assert not impossible_for_one(values).any()


def share_that_fits(x, y):
    """Attacks the support (Jin et al. 2022): do two values come from one pair of 31-bit uniform numbers?

    The radius of a pair gives its uniform number, which is an odd multiple of 2^-32. Float32 values reveal it
    where it is small. Returns the share of such pairs that fit to a tenth; values of other origin give 20%.
    """
    square = x.double() ** 2 + y.double() ** 2
    far = square > 23
    number = torch.exp(-square[far] / 2) * 2**31 - 0.5
    return float(((number - number.round()).abs() < 0.1).double().mean())


@pytest.mark.slow
def test_the_support_reveals_values_under_reproducible_noise_only():
    """Of 16,000,000 pairs, about 160 are far enough, so their share has a standard error of 3%.

    Reproducible noise puts the two values of a pair half a group apart, secure noise half a block.
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
def test_low_bits_are_uniform_for_any_value_at_false_alarm_rate_1e_4(value):
    """Tests grid steps modulo 64. Rejects half a percent too many even numbers."""
    n = 1_000_000
    out = fixed(10).round_(torch.full((n,), value, dtype=torch.float64), 1.0).numpy() * _STEPS
    steps = np.rint(out).astype(np.int64)
    assert (out == steps).all()
    assert stats.chisquare(np.bincount(steps % 64, minlength=64)).pvalue > ALPHA
    biased = np.where(np.arange(n) % 100 == 0, steps & ~1, steps)
    assert stats.chisquare(np.bincount(biased % 64, minlength=64)).pvalue < ALPHA


def test_a_zero_has_no_sign():
    """A sign of zero would tell on which side of 0 the sum was before rounding."""

    def no_noise(bits):
        return np.full(len(bits), -0.2), np.empty(0, dtype=np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure_noise, "_from_bits", no_noise)
        out = fixed(0).round_(torch.full((10,), -0.2 / _STEPS, dtype=torch.float64), 1.0)
    assert (out == 0).all()
    assert not torch.signbit(out).any()
