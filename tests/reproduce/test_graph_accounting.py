"""The accountant for graphs, compared with counting, numerical integration and the Gaussian mechanism."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.integrate import trapezoid
from scipy.special import logsumexp, ndtr
from scipy.stats import norm

from adamas.accounting import composition
from adamas.accounting.terms import FIXED_SIZE, SampledTermsDpEvent
from adamas.reproduce import graph_accounting

TINY = {"noise_multiplier": 0.8, "nodes": 6, "batch_size": 3, "max_degree": 2}


def shares_by_counting(nodes: int, batch_size: int, affected: int) -> list[float]:
    batches = list(itertools.combinations(range(nodes), batch_size))
    counts = [sum(node < affected for node in batch) for batch in batches]
    return [counts.count(rho) / len(batches) for rho in range(affected + 1)]


def test_term_probabilities_equal_a_count_over_all_batches():
    found = SampledTermsDpEvent(6, 3, 3, 1.0, FIXED_SIZE).probabilities()
    assert np.allclose(found, shares_by_counting(6, 3, 3), atol=1e-14)


def divergence(p_logs: list, q_logs: list, shares: list[float], alpha: float) -> float:
    """Returns the Rényi divergence of pairs of densities with shares, by the trapezoidal rule."""
    x = np.linspace(-200, 200, 40_001)
    powers = [np.exp(alpha * p(x) + (1 - alpha) * q(x)) for p, q in zip(p_logs, q_logs, strict=True)]
    return math.log(np.dot(shares, trapezoid(powers, x, axis=1))) / (alpha - 1)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 4.0, 9.0])
def test_the_bound_holds_and_is_reached_if_the_number_of_terms_is_known(alpha):
    # Clipping norm 1. In one data set the affected gradients are +1, in the other -1; the rest are 0.
    sigma = TINY["noise_multiplier"] * 2 * 3
    shares = shares_by_counting(6, 3, 3)
    plus = [norm(rho, sigma).logpdf for rho in range(4)]
    minus = [norm(-rho, sigma).logpdf for rho in range(4)]

    def mixture(logs):
        return lambda x: logsumexp([log(x) for log in logs], b=np.array(shares)[:, None], axis=0)

    bound = graph_accounting.renyi([alpha], **TINY)[0]
    assert divergence(plus, minus, shares, alpha) == pytest.approx(bound, rel=1e-9)
    assert 0 < divergence([mixture(plus)], [mixture(minus)], [1.0], alpha) < bound


def test_with_all_terms_in_every_batch_it_is_the_gaussian_mechanism():
    full = {"noise_multiplier": 1.3, "nodes": 4, "batch_size": 4, "max_degree": 3}
    assert np.allclose(graph_accounting.renyi([2.0, 5.5], **full), np.array([2.0, 5.5]) / (2 * 1.3**2))
    gaussian = dp_accounting.GaussianDpEvent(1.3)
    by_rdp = composition.composed_epsilon([(gaussian, 10)], 1e-5, "rdp")
    assert graph_accounting.epsilon(**full, steps=10, delta=1e-5) == pytest.approx(by_rdp, rel=1e-9)
    exact = PLDAccountant(value_discretization_interval=1e-4).compose(gaussian, 10).get_epsilon(1e-5)
    by_pld = graph_accounting.epsilon(**full, steps=10, delta=1e-5, accountant="pld")
    assert exact - 1e-4 <= by_pld <= exact + 2e-3


def test_one_step_by_pld_has_the_mean_of_the_deltas():
    epsilon = graph_accounting.epsilon(**TINY, steps=1, delta=1e-3, accountant="pld")
    delta = 0.0
    for rho, share in enumerate(shares_by_counting(6, 3, 3)):
        if rho:
            mu = rho / (0.8 * 3)
            upper, lower = ndtr(mu / 2 - epsilon / mu), ndtr(-mu / 2 - epsilon / mu)
            delta += share * (upper - math.exp(epsilon) * lower)
    assert delta == pytest.approx(1e-3, rel=2e-3)


def test_the_steps_are_the_most_that_keep_the_budget_and_pld_allows_more():
    run = {"noise_multiplier": 2.7, "nodes": 90_941, "batch_size": 10_000, "max_degree": 6, "delta": 1e-6}
    counts = {}
    for accountant in ("rdp", "pld"):
        count = counts[accountant] = graph_accounting.steps(epsilon=3.0, accountant=accountant, **run)
        assert graph_accounting.epsilon(steps=count, accountant=accountant, **run) <= 3.0
        assert graph_accounting.epsilon(steps=count + 1, accountant=accountant, **run) > 3.0
    assert counts["rdp"] < counts["pld"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 7}, "batch_size=7 and the 3 terms of max_degree=2 .* at most nodes=6"),
        ({"max_degree": 6}, "7 terms of max_degree=6 .* at most nodes=6"),
        ({"noise_multiplier": 0.0}, "noise_multiplier=0.0 > 0"),
        ({"delta": 0.0}, "delta=0.0 in"),
        ({"accountant": "prv"}, "accountant='prv' to be one of"),
        ({"epsilon": 0.01}, "pay for one step"),
    ],
)
def test_an_impossible_graph_run_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        graph_accounting.steps(**({"epsilon": 5.0, "delta": 1e-5} | TINY | change))


@pytest.mark.parametrize("hops", [1, 2])
def test_more_hops_count_more_terms(hops):
    run = {"nodes": 90_941, "batch_size": 10_000, "max_degree": 6, "steps": 100, "delta": 1e-6}
    terms = {1: 7, 2: 43}[hops]
    event = SampledTermsDpEvent(90_941, 10_000, terms, 2 * terms * 2.7, FIXED_SIZE)
    found = graph_accounting.epsilon(noise_multiplier=2.7, hops=hops, **run)
    removed = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    assert found == composition.composed_epsilon([(event, 100)], 1e-6, "rdp", removed)
