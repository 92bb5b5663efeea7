"""The law of secure noise: normal, independent, and given by the secret and the position alone.

The statistical tests fix the secret. Correct noise fails one with probability ALPHA over the choice of the
secret, and each test also shows wrong noise that it rejects.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from adamas import _streams, secure_noise
from adamas.secure_noise import _BLOCK, SecureNoise
from tests.support.p_values import ALPHA, correlation_p_value
from tests.support.secure_noises import fixed


def pmf_p_value(integers, std, mean):
    """Tests integers against the rounded normal law by chi-square, with joined tails."""
    edges = np.arange(math.floor(mean - 4 * std), math.ceil(mean + 4 * std) + 1) + 0.5
    chances = np.diff(np.concatenate([[0], stats.norm(mean, std).cdf(edges), [1]]))
    counts = np.bincount(np.searchsorted(edges, integers), minlength=len(chances))
    return stats.chisquare(counts, chances * len(integers)).pvalue


@pytest.mark.parametrize("offset", [0.0, 0.3, -0.5, 1234.56])
def test_on_a_coarse_grid_every_integer_has_its_probability_at_false_alarm_rate_1e_4(monkeypatch, offset):
    """Rejects a deviation 2% off, an offset of half a step, cut tails and double steps."""
    monkeypatch.setattr(secure_noise, "_STEPS", 4.0)
    values = fixed(1).round_(torch.full((300_000,), offset / 4, dtype=torch.float64), std=1.0).numpy() * 4
    integers = np.rint(values)
    assert (values == integers).all()
    assert pmf_p_value(integers, 4.0, offset) > ALPHA
    assert pmf_p_value(integers, 4.08, offset) < ALPHA
    assert pmf_p_value(integers, 4.0, offset + 0.5) < ALPHA
    assert pmf_p_value(np.clip(integers, offset - 12, offset + 12), 4.0, offset) < ALPHA
    assert pmf_p_value(2 * np.rint(integers / 2), 4.0, offset) < ALPHA


@pytest.mark.slow
def test_values_are_normal_with_their_variance_and_kurtosis_at_false_alarm_rate_3e_4():
    """False-alarm rate: ALPHA for each of three tests. Rejects deviations 1% or 0.5% off, and cut tails."""
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


def test_the_tails_have_their_probability_at_false_alarm_rate_3e_4():
    """False-alarm rate: ALPHA for each threshold. Rejects tails of a third of the weight."""
    values = fixed(3).normal_(torch.empty(6_000_000)).abs()
    for threshold in (3.0, 4.0, 4.5):
        beyond, chance = int((values > threshold).sum()), 2 * stats.norm.sf(threshold)
        assert stats.binomtest(beyond, values.numel(), chance).pvalue > ALPHA
        assert stats.binomtest(beyond // 3, values.numel(), chance).pvalue < ALPHA


def test_pairs_blocks_and_draws_are_independent_at_false_alarm_rate_1e_3():
    """False-alarm rate: ALPHA for each of 10 statistics, half of them of squares. Rejects a shared 3%."""
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


def test_noise_without_the_cryptography_package_is_normal_at_false_alarm_rate_1e_4(monkeypatch):
    monkeypatch.setattr(_streams, "ciphers", None)
    values = fixed(15).normal_(torch.empty(100_000, dtype=torch.float64)).numpy()
    assert stats.kstest(values, "norm").pvalue > ALPHA
    assert stats.kstest(1.05 * values, "norm").pvalue < ALPHA


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
