"""The factors of DP-MacAdam against values by hand, their recursion and simulated noise."""

import math

import numpy as np
import pytest

from adamas import theory

# t -> (E[s_t] / V, the factor of the paper) for beta = 0.9, to four digits
KAPPA = {
    2: (0.0449, 0.0947),
    3: (0.1002, 0.1800),
    5: (0.2132, 0.3258),
    10: (0.4454, 0.5803),
    20: (0.6961, 0.8194),
    60: (0.8496, 0.9455),
    10_000: (0.8526, 0.9474),
}


@pytest.mark.parametrize("t", KAPPA)
def test_kappa_has_the_values_computed_by_hand(t):
    exact, paper = KAPPA[t]
    assert round(theory.macadam_kappa(t, 0.9), 4) == exact
    assert round(theory.macadam_kappa(t, 0.9, kind="paper"), 4) == paper


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.9, 0.99])
def test_kappa_satisfies_its_recursion(beta):
    kappa = 0.0
    for t in range(1, 3000):
        kappa = beta * kappa + (1 - beta) * theory.macadam_excess(t, beta)
        if t < 50 or t % 100 == 0:
            assert theory.macadam_kappa(t, beta) == pytest.approx(kappa, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("beta", [0.3, 0.9, 0.99])
def test_kappa_has_its_limits_and_the_factor_of_the_paper_underestimates_the_variance(beta):
    exact, paper = (theory.macadam_kappa(10**6, beta, kind=kind) for kind in ("exact", "paper"))
    assert exact == pytest.approx(2 * beta**2 / (1 + beta), rel=1e-12)
    assert paper == pytest.approx(2 * beta / (1 + beta), rel=1e-12)
    assert theory.macadam_excess(10**6, beta) == pytest.approx(exact, rel=1e-12)
    # E[s_t / kappa_t] = ratio * V, where the ratio rises from about a half to beta.
    ratio = {t: theory.macadam_kappa(t, beta) / theory.macadam_kappa(t, beta, kind="paper") for t in (2, 9)}
    assert ratio[2] == pytest.approx(beta / (1 + beta), rel=1e-12)
    assert ratio[2] < ratio[9] < beta
    assert exact / paper == pytest.approx(beta, rel=1e-12)


def test_the_factors_of_the_first_step_are_zero():
    assert theory.macadam_excess(1, 0.9) == 0.0
    assert theory.macadam_kappa(1, 0.9) == theory.macadam_kappa(1, 0.9, kind="paper") == 0.0


def test_simulated_noise_has_the_exact_factors_and_not_that_of_the_paper():
    """Runs lines 14 to 19 of Algorithm 1 of DP-MacAdam on independent values of mean 3 and variance 4.

    Each mean over the replicates must be within 5 standard errors of the exact value. The false-alarm rate is
    6e-7 for one comparison and 1e-5 for all 12.
    """
    rng = np.random.default_rng(0)
    beta, replicates = 0.9, 200_000
    m = s = np.zeros(replicates)
    for t in range(1, 61):
        g = 3 + 2 * rng.normal(size=replicates)
        m = beta * m + (1 - beta) * g
        u = (g - m / (1 - beta**t)) ** 2
        s = beta * s + (1 - beta) * u
        if t in KAPPA:

            def agrees(values, expected):
                error = values.std() / math.sqrt(replicates)
                return bool(abs(values.mean() - expected) < 5 * error)

            assert agrees(u, 4 * theory.macadam_excess(t, beta))
            assert agrees(s, 4 * theory.macadam_kappa(t, beta))
            assert not agrees(s, 4 * theory.macadam_kappa(t, beta, kind="paper"))
