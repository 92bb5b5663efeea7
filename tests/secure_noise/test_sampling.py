"""Samplers of a secure run draw from the secret stream, with the right probabilities."""

import numpy as np
from scipy import stats

from adamas._streams import SecureGenerator, Seed
from adamas.sampling import Poisson, Shuffled, TruncatedPoisson
from tests.support.p_values import ALPHA
from tests.support.secure_noises import fixed


def test_uniform_values_are_above_zero_so_that_coins_never_exceed_the_rate():
    for byte, value in ((b"\0", 2.0**-53), (b"\xff", 1.0)):
        assert SecureGenerator(lambda call, count, byte=byte: byte * count).random(3).tolist() == [value] * 3


def test_secure_samples_are_poisson_at_false_alarm_rate_2e_4():
    """False-alarm rate: ALPHA for each of two tests. Rejects a rate 5% off."""
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


def test_every_sampler_draws_from_the_secret_stream(monkeypatch):
    seed = fixed(13).seed
    monkeypatch.setattr(Seed, "generator", None)  # the generator of reproducible runs
    assert len(Poisson(50, 10, seed).indices(0).indices) < 50
    draw = TruncatedPoisson(50, 10, 10, seed).indices(0)
    assert len(draw.indices) == 10
    shuffled = Shuffled(50, 10, seed)
    assert sorted(np.concatenate([shuffled.indices(i).indices for i in range(5)])) == list(range(50))
