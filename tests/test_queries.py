"""Noisy counts: whole numbers, with the noise that the ledger counts."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

import adamas
from adamas._streams import Seed
from adamas.noise import GaussianNoise
from adamas.queries import noisy_counts


def test_counts_are_whole_and_the_ledger_has_one_gaussian_event():
    ledger = adamas.Ledger()
    noisy = noisy_counts([5, 0, 7], noise_multiplier=2.0, ledger=ledger, seed=1)
    assert noisy.dtype == np.int64
    assert ledger.entries == [(dp_accounting.GaussianDpEvent(2.0), 1)]


@pytest.mark.parametrize(("noise_multiplier", "sensitivity"), [(20.0, 1.0), (10.0, 3.0)])
def test_the_noise_is_gaussian_with_the_stated_deviation(noise_multiplier, sensitivity):
    """The test rejects the right deviation with probability 1e-4, by the Kolmogorov-Smirnov distribution."""
    counts = np.full(20_000, 1000)
    noisy = noisy_counts(counts, noise_multiplier=noise_multiplier, sensitivity=sensitivity, seed=3)
    std = noise_multiplier * sensitivity
    generator = np.random.default_rng(0)
    spread = noisy - 1000 + generator.uniform(-0.5, 0.5, noisy.size)  # undoes the rounding, nearly
    spread /= math.sqrt(std**2 + 1 / 12)
    assert stats.kstest(spread, "norm").pvalue > 1e-4
    for wrong in (0.9, 1.1):
        assert stats.kstest(spread * wrong, "norm").pvalue < 1e-4


def test_the_noise_does_not_depend_on_the_counts():
    one = noisy_counts([0, 10**6], noise_multiplier=3.0, seed=5)
    other = noisy_counts([7, 10], noise_multiplier=3.0, seed=5)
    assert (one - [0, 10**6]).tolist() == (other - [7, 10]).tolist()


def test_a_secret_seed_draws_other_noise_each_time():
    draws = {tuple(noisy_counts([0] * 8, noise_multiplier=100.0)) for _ in range(5)}
    assert len(draws) == 5


def test_a_seed_has_other_noise_here_than_in_a_training_run():
    training = GaussianNoise(Seed(7)).normal_(torch.empty(64, dtype=torch.float64)).numpy()
    counts = noisy_counts([0] * 64, noise_multiplier=1000.0, seed=7)
    assert abs(np.corrcoef(training, counts)[0, 1]) < 0.5  # false alarm: below 1e-4


@pytest.mark.parametrize(
    ("counts", "options", "error", "text"),
    [
        ([0.5], {}, TypeError, "whole numbers"),
        ([[1]], {}, TypeError, "2 dimensions"),
        ([2**60], {}, ValueError, "counts from"),
        ([1], {"noise_multiplier": 0.0}, ValueError, "noise_multiplier"),
        ([1], {"sensitivity": -1.0}, ValueError, "sensitivity"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_recorded(counts, options, error, text):
    ledger = adamas.Ledger()
    with pytest.raises(error, match=text):
        noisy_counts(counts, **{"noise_multiplier": 1.0, "ledger": ledger} | options)
    assert not ledger.entries


def test_noise_whose_digits_do_not_reach_whole_numbers_is_refused():
    with pytest.raises(ValueError, match="sensitivity"):
        noisy_counts([0, 1], noise_multiplier=20.0, sensitivity=1e16)


def test_a_ledger_under_replacement_is_refused():
    ledger = adamas.Ledger(dp_accounting.NeighboringRelation.REPLACE_ONE)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        noisy_counts([1, 2], noise_multiplier=5.0, ledger=ledger)
    assert not ledger.entries


def test_rdp_has_no_bound_for_a_gaussian_under_replacement():
    """PLD counts twice the move, and RDP once: 0.79 where 1.06 is true."""
    ledger = adamas.Ledger(dp_accounting.NeighboringRelation.REPLACE_ONE)
    ledger.record(dp_accounting.GaussianDpEvent(5.0))
    assert ledger.epsilon(1e-5) > 1.0
    with pytest.raises(adamas.UnsupportedError, match="rdp"):
        ledger.epsilon(1e-5, "rdp")
