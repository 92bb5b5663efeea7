"""The epsilon of federated training for a record or a client, and the noise for a target."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp, ndtr

from adamas import calibrate
from adamas.federated import accounting
from adamas.federated.accounting import Plan

BASE = {"rounds": 100, "local_steps": 20, "sampling_rate": 16 / 500, "delta": 1e-5}


@pytest.mark.parametrize(
    ("batch", "size", "steps", "rounds", "all_rounds", "tenth"),
    [(16, 500, 20, 100, 10.5, 3.45), (16, 1000, 20, 100, 4.79, 1.85), (50, 500, 50, 300, 246, 35.7)],
)
def test_known_values_by_rdp(batch, size, steps, rounds, all_rounds, tenth):
    plan = Plan(rounds=rounds, local_steps=steps, sampling_rate=batch / size, delta=1e-5, accountant="rdp")
    assert float(f"{plan.epsilon(1.0):.3g}") == all_rounds
    assert float(f"{plan.epsilon(1.0, rounds=rounds // 10):.3g}") == tenth


def test_the_cost_of_a_record_is_that_of_all_local_steps():
    plan = Plan(**BASE)
    expected = calibrate.epsilon(noise_multiplier=1.3, sampling_rate=16 / 500, steps=2000, delta=1e-5)
    assert plan.epsilon(1.3) == expected
    assert plan.epsilon(1.3, rounds=0) == 0
    assert plan.epsilon(0.0) == math.inf


def test_two_queries_cost_as_much_as_one_with_noise_smaller_by_sqrt_two():
    two = Plan(**BASE, queries=2, accountant="rdp")
    one = Plan(**BASE, accountant="rdp")
    assert two.epsilon(1.0 * math.sqrt(2)) == pytest.approx(one.epsilon(1.0), rel=1e-9)
    assert two.epsilon(1.0) > 1.3 * one.epsilon(1.0)


def test_the_cost_of_a_client_is_that_of_all_rounds():
    plan = Plan(unit="client", rounds=50, local_steps=20, sampling_rate=0.1, delta=1e-5)
    expected = calibrate.epsilon(noise_multiplier=1.0, sampling_rate=0.1, steps=50, delta=1e-5)
    assert plan.epsilon(1.0) == expected


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_participation_lowers_epsilon_only_if_the_plan_counts_on_it(accountant):
    plain = Plan(**BASE, accountant=accountant)
    everybody = Plan(**BASE, accountant=accountant, participation=1.0)
    some = Plan(**BASE, accountant=accountant, participation=0.1)
    assert everybody.epsilon(1.0) == pytest.approx(plain.epsilon(1.0), rel=0.08)
    assert everybody.epsilon(1.0) >= plain.epsilon(1.0) * (1 - 1e-9)
    # At least the cost of a client that takes part in a tenth of the rounds.
    assert plain.epsilon(1.0, rounds=10) < some.epsilon(1.0) < 0.5 * plain.epsilon(1.0)


def test_the_nested_bound_averages_over_the_number_of_rounds_with_the_client():
    """The number of rounds is binomial. Its Renyi divergence is computed by summing over that number."""
    rounds, steps, share, z, orders = 7, 3, 0.3, 2.0, np.array([2.0, 5.0, 20.0])
    # Without sampling of records a step's divergence is alpha / (2 z^2).
    per_round = steps * orders / (2 * z**2)
    counts = np.arange(rounds + 1)
    log_binomial = np.array([math.log(math.comb(rounds, int(k))) for k in counts])
    log_binomial += counts * math.log(share) + (rounds - counts) * math.log(1 - share)
    exact = logsumexp(log_binomial + np.outer(orders - 1, counts) * per_round[:, None], axis=1) / (orders - 1)
    gamma = accounting._round_renyi(z, 1.0, steps, share)
    places = [accounting.ledger.RDP_ORDERS.index(order) for order in orders]
    np.testing.assert_allclose(gamma[places] * rounds, exact, rtol=1e-9)


def test_the_nested_bound_by_pld_is_below_rdp_and_tight_if_participation_is_revealed():
    """Without sampling of records, delta is the binomial mean of the deltas of Gaussian mechanisms."""
    rounds, share, z = 10, 0.4, 3.0
    plan = Plan(rounds=rounds, sampling_rate=1.0, delta=1e-5, participation=share)
    epsilon = plan.epsilon(z)

    def delta_of(count: int) -> float:
        mu = math.sqrt(count) / z
        return ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)

    delta = sum(
        math.comb(rounds, k) * share**k * (1 - share) ** (rounds - k) * delta_of(k)
        for k in range(1, rounds + 1)
    )
    assert delta <= 1e-5
    assert delta == pytest.approx(1e-5, rel=0.05)  # 5 % of delta is 0.005 of epsilon
    rdp = Plan(rounds=rounds, sampling_rate=1.0, delta=1e-5, participation=share, accountant="rdp")
    assert epsilon < rdp.epsilon(z)


@pytest.mark.parametrize("participation", [None, 0.2])
def test_noise_for_a_target_is_the_least_that_keeps_it(participation):
    plan = Plan(**BASE, accountant="rdp", participation=participation)
    z = plan.noise_multiplier(3.0)
    assert plan.epsilon(z) <= 3.0 < plan.epsilon(z - 0.001)


def test_an_unreachable_target_is_refused_with_the_least_epsilon():
    plan = Plan(rounds=2**23, sampling_rate=1.0, delta=1e-5, accountant="rdp")
    with pytest.raises(ValueError, match=r"not enough: it gives epsilon=0\.1"):
        plan.noise_multiplier(0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "patient"}, "unit='patient'"),
        ({"rounds": 0}, "rounds=0"),
        ({"sampling_rate": 1.5}, "sampling_rate=1.5"),
        ({"participation": 0.0}, "participation=0.0"),
        ({"unit": "client", "participation": 0.5}, "participation=None for unit='client'"),
        ({"accountant": "gdp"}, "accountant='gdp'"),
    ],
)
def test_bad_plans_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Plan(**BASE | options)
