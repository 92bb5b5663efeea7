"""The privacy of a record in several terms: against integration, dp_accounting, and the papers' values."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from scipy.integrate import trapezoid
from scipy.special import ndtr
from scipy.stats import binom, hypergeom

from adamas.accounting.composition import composed_epsilon, supports
from adamas.accounting.events import decode, encode
from adamas.accounting.loss_distributions import losses_of
from adamas.accounting.terms import FIXED_SIZE, MOST_TERMS, POISSON, SampledTermsDpEvent
from adamas.errors import UnsupportedError

REMOVE = NeighboringRelation.REPLACE_SPECIAL
SMALL = [  # size, batch, terms, noise
    (10, 3, 2, 2.0),
    (10, 3, 2, 0.7),
    (20, 10, 5, 4.0),
    (6, 6, 3, 5.0),
    (1000, 10, 8, 9.0),
]


def event(size, batch, terms, noise, sampling):
    return SampledTermsDpEvent(size, batch, terms, noise, sampling)


def worst_delta(one, epsilon):
    """The exact delta of the pair in which every term of the record turns from 1 to -1, by integration."""
    z, weights = one.noise_multiplier, one.probabilities()
    counts = np.arange(one.terms + 1)
    x = np.linspace(-one.terms - 12 * z, one.terms + 12 * z, 400_001)

    def density(sign):
        parts = np.exp(-((x[:, None] - sign * counts) ** 2) / (2 * z**2)) / (z * math.sqrt(2 * math.pi))
        return parts @ weights

    return float(trapezoid(np.maximum(density(1) - math.exp(epsilon) * density(-1), 0.0), x))


@pytest.mark.parametrize("sampling", [FIXED_SIZE, POISSON])
@pytest.mark.parametrize(("size", "batch", "terms"), [(10, 3, 2), (90941, 10000, 57), (5, 5, 5), (9, 8, 7)])
def test_the_number_of_changed_terms_is_distributed_as_scipy_says(size, batch, terms, sampling):
    found = event(size, batch, terms, 1.0, sampling).probabilities()
    law = binom(terms, batch / size) if sampling == POISSON else hypergeom(size, terms, batch)
    np.testing.assert_allclose(found, law.pmf(np.arange(terms + 1)), rtol=1e-9, atol=1e-300)
    assert found.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.03, 0.1, 0.3])
@pytest.mark.parametrize("sampling", [FIXED_SIZE, POISSON])
@pytest.mark.parametrize("numbers", SMALL)
def test_one_release_is_never_below_the_exact_delta_of_the_worst_pair(numbers, sampling, epsilon):
    one = event(*numbers, sampling)
    exact = worst_delta(one, epsilon)
    assert 1e-90 < exact < 1
    assert composed_epsilon([(one, 1)], exact, "pld", REMOVE) >= epsilon - 1e-9


@pytest.mark.parametrize("sampling", [FIXED_SIZE, POISSON])
@pytest.mark.parametrize("numbers", SMALL)
def test_the_direct_bound_is_the_mean_of_gaussian_deltas(numbers, sampling):
    one = event(*numbers, sampling)
    (losses,) = losses_of(one, REMOVE, 1e-3, -50.0)
    values = (np.arange(len(losses.probabilities)) + losses.lowest) * 1e-3
    for epsilon in (0.05, 0.7, 2.0):
        mean = sum(
            p * (ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))
            for mu, p in zip(one.shifts()[1:], one.probabilities()[1:], strict=True)
        )
        found = losses.infinite + float(
            (np.maximum(-np.expm1(epsilon - values), 0.0) * losses.probabilities).sum()
        )
        assert found == pytest.approx(mean, rel=1e-5, abs=1e-13)
        assert found >= mean * (1 - 1e-9) - 1e-15


@pytest.mark.slow
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("numbers", SMALL)
def test_mixtures_of_gaussians_are_those_of_dp_accounting(numbers, direction):
    mixture = event(*numbers, POISSON).without_terms()
    losses = losses_of(mixture, NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-2, -50.0)[direction]
    outside = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        mixture.standard_deviation,
        mixture.sensitivities,
        mixture.sampling_probs,
        value_discretization_interval=1e-2,
    )
    pmf = (outside._pmf_remove, outside._pmf_add)[direction]
    values = (np.arange(len(losses.probabilities)) + losses.lowest) * 1e-2
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        found = losses.infinite + float(
            (np.maximum(-np.expm1(epsilon - values), 0.0) * losses.probabilities).sum()
        )
        assert found == pytest.approx(pmf.get_delta_for_epsilon(epsilon), rel=1e-6, abs=1e-12)


def released(rng, one, sign, steps, runs):
    """Sums of a run in which every term of the record is `sign`, in standard deviations of the noise."""
    counts = rng.binomial(one.terms, one.batch_size / one.dataset_size, (runs, steps))
    return sign * counts / one.noise_multiplier + rng.standard_normal((runs, steps))


def test_many_releases_are_not_below_what_an_attacker_achieves():
    # The attacker adds all releases up, and guesses by a threshold. 200,000 runs of each graph: the bound of
    # Hoeffding at 1e-6 makes a false alarm of this test less likely than that.
    one, steps, runs, delta = event(100, 20, 4, 6.0, POISSON), 20, 200_000, 1e-2
    epsilon = composed_epsilon([(one, steps)], delta, "pld", REMOVE)
    rng = np.random.default_rng(0)
    sums = [released(rng, one, sign, steps, runs).sum(1) for sign in (1, -1)]
    slack = 2 * math.sqrt(math.log(2e6) / (2 * runs))

    def violated(claimed):
        return any(
            (sums[0] > cut).mean() - math.exp(claimed) * (sums[1] > cut).mean() > delta + slack * 4
            for cut in np.linspace(-5, 15, 81)
        )

    assert not violated(epsilon)
    assert violated(epsilon / 4)  # a wrong value is rejected


@pytest.mark.parametrize("sampling", [FIXED_SIZE, POISSON])
def test_renyi_dp_gives_the_published_values(sampling):
    for steps, published in ((50, 2.31), (200, 4.52), (1000, 11.05)):
        one = event(90_941, 10_000, 7, 2 * 7 * 2.7, sampling)
        assert composed_epsilon([(one, steps)], 1 / 909_410, "rdp", REMOVE) == pytest.approx(
            published, abs=0.005
        )


def test_poisson_sampling_costs_less_than_a_fixed_size_and_renyi_dp_most():
    for steps, poisson, fixed, renyi in ((50, 1.243, 2.091, 2.314), (1000, 6.840, 10.357, 11.048)):
        costs = [
            composed_epsilon(
                [(event(90_941, 10_000, 7, 37.8, sampling), steps)], 1 / 909_410, accountant, REMOVE
            )
            for sampling, accountant in ((POISSON, "pld"), (FIXED_SIZE, "pld"), (FIXED_SIZE, "rdp"))
        ]
        assert costs == pytest.approx([poisson, fixed, renyi], abs=2e-3)


def test_full_batches_cost_the_same_in_both_ways():
    fixed, poisson = (event(50, 50, 3, 20.0, sampling) for sampling in (FIXED_SIZE, POISSON))
    costs = [composed_epsilon([(one, 10)], 1e-5, "pld", REMOVE) for one in (fixed, poisson)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-6)


@pytest.mark.slow
def test_less_noise_is_more_costly_down_to_no_bound_at_all():
    costs = [
        composed_epsilon([(event(277, 50, 5, z, POISSON), 30)], 1e-4, "pld", REMOVE)
        for z in (100.0, 10.0, 3.0, 1.0, 0.3)
    ]
    assert costs == sorted(costs)
    assert composed_epsilon([(event(277, 50, 5, 0.1, POISSON), 30)], 1e-4, "pld", REMOVE) == math.inf


def test_events_survive_being_written():
    one = event(277, 50, 5, 6.5, POISSON)
    assert decode(encode(one)) == one


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ((0, 1, 1, 1.0, POISSON), "dataset_size"),
        ((10, 11, 1, 1.0, POISSON), "batch_size"),
        ((10, 5, 11, 1.0, POISSON), "terms"),
        ((10**6, 5, MOST_TERMS + 1, 1.0, POISSON), "terms"),
        ((10, 5, 1, 1.0, "shuffled"), "sampling"),
    ],
)
def test_bad_numbers_are_refused_by_name(numbers, name):
    with pytest.raises(ValueError, match=name):
        event(*numbers)


def test_a_number_of_terms_that_changes_is_refused():
    one, add_or_remove = event(10, 5, 1, 1.0, POISSON), NeighboringRelation.ADD_OR_REMOVE_ONE
    assert not supports("pld", one, add_or_remove)
    with pytest.raises(UnsupportedError):
        composed_epsilon([(one, 1)], 1e-5, "pld", add_or_remove)
