"""No epsilon is below the true one: comparisons with exact formulas and with other accountants."""

import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from adamas import Ledger
from adamas.accounting import composition, loss_distributions, privacy_loss
from adamas.accounting.composition import composed_epsilon
from tests.support.dp_events import every_accountant, sampled
from tests.support.exact_deltas import gaussian_delta, sampled_delta, twice_sampled_delta

pytestmark = pytest.mark.usefixtures("digits")

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-5, 1e-8, 1e-10, 1e-12, 1e-14, 1e-20, 1e-50, 1e-100])
@pytest.mark.parametrize(
    ("z", "steps"),
    [(0.02, 1), (0.3, 1), (1, 1), (5, 1), (30, 900), (100, 10**4), (20, 10**4), (100, 10**6), (1000, 10**6)],
)
def test_pld_bounds_the_epsilon_of_gaussians_tightly_from_above(z, steps, delta):
    """Releases without sampling equal a single Gaussian release, but PLD composes them one by one.

    Without tilting, Fourier transforms give 7.647 instead of 7.869 for 10,000 releases of multiplier 100 at
    delta 1e-14.
    """
    answer = privacy_loss.epsilon([(sampled(z, 1.0), steps)], delta, ADD_OR_REMOVE, 1e-4)
    joint = z / mpmath.sqrt(steps)
    assert gaussian_delta(answer, joint) <= delta
    # Rounding losses up costs about this much, and no more.
    nearby = answer - 1e-5 - 5e-8 * steps * math.sqrt(answer)
    assert answer < 1e-9 or gaussian_delta(nearby, joint) > delta


def test_epsilons_at_a_tiny_delta_are_not_lost_in_rounding():
    for delta, true in ((1e-14, 7.8687), (1e-10, 6.5479)):
        answer = composed_epsilon([(sampled(100.0, 1.0), 10**4)], delta)
        assert true < answer < true + 2e-3
        assert gaussian_delta(answer, 1.0) <= delta


@pytest.mark.parametrize("delta", [1e-3, 1e-7, 1e-12, 1e-30])
@pytest.mark.parametrize(("z", "rate"), [(0.1, 0.01), (0.5, 0.3), (1.0, 0.01), (4.0, 0.9), (30.0, 0.1)])
def test_pld_bounds_the_epsilon_of_one_sampled_release_tightly_from_above(z, rate, delta):
    answer = composed_epsilon([(sampled(z, rate), 1)], delta)
    true = max(sampled_delta(answer, z, rate, more=more) for more in (False, True))
    assert true <= delta
    lower = answer - 1e-3
    assert lower < 0 or max(sampled_delta(lower, z, rate, more=more) for more in (False, True)) > delta


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-14])
@pytest.mark.parametrize(("z", "rate"), [(0.7, 0.1), (2.0, 0.5)])
def test_pld_bounds_the_epsilon_of_two_sampled_releases_tightly_from_above(z, rate, delta):
    """Compares with numerical integration."""
    answer = composed_epsilon([(sampled(z, rate), 2)], delta)
    with mpmath.workdps(30):
        true = max(twice_sampled_delta(answer, z, rate, more=more) for more in (False, True))
        below = max(twice_sampled_delta(answer - 2e-3, z, rate, more=more) for more in (False, True))
    assert true <= delta < below


@pytest.mark.parametrize(
    ("z", "rate", "steps", "delta"),
    [(1.0, 0.01, 1000, 1e-5), (0.6, 0.004, 3000, 1e-6), (4.0, 0.2, 500, 1e-7), (2.0, 0.05, 20, 1e-8)],
)
def test_pld_agrees_with_the_prv_accountant(z, rate, steps, delta):
    """Gopi, Lee and Wutschitz (2021) state the error of their accountant, which is part of Opacus."""
    prv = pytest.importorskip("opacus.accountants").PRVAccountant()
    prv.history = [(z, rate, steps)]
    theirs = prv.get_epsilon(delta, eps_error=0.01, delta_error=delta / 1000)
    ours = composed_epsilon([(sampled(z, rate), steps)], delta)
    assert theirs - 0.02 < ours < theirs + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-10, 1e-14, 1e-40, 1e-100])
@pytest.mark.parametrize(
    ("z", "rate", "steps"),
    [(0.05, 0.01, 10), (1.0, 0.01, 1000), (100.0, 1.0, 10**6), (0.8, 1e-4, 10**6), (5.0, 0.5, 10**4)],
)
def test_rdp_is_never_below_pld(z, rate, steps, delta):
    """Both are upper bounds, and PLD is the tight one. If RDP gave less, one of them would be wrong."""
    entries = [(sampled(z, rate), steps)]
    assert (
        composed_epsilon(entries, delta, "pld", coarse=False)
        <= composed_epsilon(entries, delta, "rdp") * 1.001
    )


def test_coarse_cells_give_an_upper_bound_on_the_fine_value():
    entries = [(sampled(), 100)]
    fine = composed_epsilon(entries, 1e-5, coarse=False)
    coarse = composed_epsilon(entries, 1e-5, coarse=True)
    assert fine < coarse < 1.05 * fine
    assert composed_epsilon(entries, 1e-5) == fine


@pytest.mark.slow
def test_events_of_many_kinds_cost_as_much_as_by_dp_accounting():
    truncated = dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(
        dataset_size=1000, sampling_probability=0.05, truncated_batch_size=70, noise_multiplier=2.0
    )
    mixture = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(3.0, [0.0, 1.0], [0.9, 0.1])
    entries = [
        (sampled(2.0, 0.1), 20),
        (dp_accounting.GaussianDpEvent(9.0), 2),
        (dp_accounting.LaplaceDpEvent(5.0), 2),
        (dp_accounting.dp_event.DiscreteLaplaceDpEvent(0.1, 1), 1),
        (truncated, 5),
        (mixture, 3),
        (dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([sampled(3.0, 0.2)] * 2), 2), 2),
    ]
    theirs = dp_accounting.pld.PLDAccountant(ADD_OR_REMOVE, 1e-3)
    for event, count in entries:
        theirs.compose(event, count)
    assert composed_epsilon(entries, 1e-5, coarse=True) == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-4)


@pytest.mark.parametrize("kind", [AdjacencyType.REMOVE, AdjacencyType.ADD])
@pytest.mark.parametrize("rate", [1e-9, 0.01, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("z", [0.02, 0.3, 1.0, 1e4])
def test_the_deltas_of_one_release_agree_with_dp_accounting(z, rate, kind):
    mechanism = GaussianPrivacyLoss(z, sampling_prob=rate, adjacency_type=kind)
    bounds = mechanism.connect_dots_bounds()
    epsilons = np.linspace(bounds.epsilon_lower - 0.1, bounds.epsilon_upper + 0.1, 301)
    np.testing.assert_allclose(
        loss_distributions._deltas(mechanism, epsilons),
        mechanism.get_delta_for_epsilon(epsilons),
        rtol=0,
        atol=1e-14,
    )


@pytest.mark.parametrize("count", [1, 1000])
def test_the_error_of_the_transforms_is_within_its_bound(count):
    """Compares with a direct convolution, which has a small relative error in every term."""
    generator = np.random.default_rng(0)
    weights = generator.random(40)
    tilted = privacy_loss._Tilted(weights / weights.sum(), 0, 0.0, 0.0)
    size = 64 * count
    found, error = privacy_loss._convolved([tilted], [count], size)
    exact = np.ones(1)
    for bit in bin(count)[2:]:
        exact = np.convolve(exact, exact)
        exact = np.convolve(exact, tilted.weights) if bit == "1" else exact
    off = float(np.abs(found[: len(exact)] - exact).sum())
    assert off <= error < 1e4 * max(off, 1e-16)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1.1, 2, 2.5, 10.9, 12, 63])
@pytest.mark.parametrize(("z", "rate"), [(0.1, 1e-3), (1.0, 0.01), (100.0, 1e-3), (1e4, 0.3), (1e6, 1e-6)])
def test_the_renyi_divergence_plus_its_rounding_error_is_above_the_true_one(z, rate, order):
    """Compares with numerical integration of the divergence."""
    z_, q, a = mpmath.mpf(z), mpmath.mpf(rate), mpmath.mpf(order)

    def integrand(x):
        return mpmath.npdf(x, 0, z_) * ((1 - q) + q * mpmath.exp((2 * x - 1) / (2 * z_**2))) ** a

    ends = {
        -30 * z_,
        -10 * z_,
        mpmath.mpf(0),
        mpmath.mpf(0.5),
        a - 5 * z_,
        a,
        a + 5 * z_,
        a + 10 * z_,
        a + 30 * z_,
    }
    true = mpmath.log(mpmath.quad(integrand, sorted(ends))) / (a - 1)
    accountant = dp_accounting.rdp.RdpAccountant([order])
    accountant.compose(sampled(z, rate))
    assert accountant._rdp[0] + composition._RDP_ROUNDING * (1 + accountant._rdp[0]) >= true


@every_accountant
@pytest.mark.parametrize("rate", [1.0, 0.5, 1e-3])
@pytest.mark.parametrize("z", [1e-300, 1e-160, 1e-157, 1e-154, 1e-100, 1e-3, 0.0199])
def test_almost_no_noise_has_an_infinite_epsilon(z, rate, accountant):
    """1/z^2 overflows. Once, the divergence of the smallest z counted as 0."""
    assert composed_epsilon([(sampled(z, rate), 1)], 1e-5, accountant) == math.inf
    nested = dp_accounting.ComposedDpEvent(
        [sampled(1.0, 1.0), dp_accounting.SelfComposedDpEvent(sampled(z, rate), 3)]
    )
    assert composed_epsilon([(nested, 1)], 1e-5, accountant) == math.inf
    recorded = Ledger()
    recorded.record(sampled(z, rate))
    assert recorded.epsilon(1e-5, accountant) == math.inf


@pytest.mark.parametrize("wrong", [math.nan, -1.0, 0.0, 3.0])
@every_accountant
def test_an_epsilon_below_that_of_one_release_is_refused(wrong, accountant, monkeypatch):
    """One release with z = 1 costs 4.377 at delta 1e-5, so ten releases cannot cost less."""
    monkeypatch.setattr(privacy_loss, "epsilon", lambda *_: wrong)
    monkeypatch.setattr(composition, "compute_epsilon", lambda *_: (wrong, 2))
    with pytest.raises(ArithmeticError, match="epsilon"):
        composed_epsilon([(sampled(1.0, 1.0), 10)], 1e-5, accountant)


@pytest.mark.parametrize(("z", "rate"), [(1.0, 1.0), (0.5, 0.1), (0.02, 0.9), (100.0, 0.5)])
def test_the_epsilon_of_one_release_is_accepted_and_less_is_refused(z, rate):
    for delta in (1e-5, 1e-12):
        answer = composed_epsilon([(sampled(z, rate), 1)], delta, coarse=False)
        with pytest.raises(ArithmeticError):
            composition._plausible(answer * 0.999, [(sampled(z, rate), 1)], delta)
