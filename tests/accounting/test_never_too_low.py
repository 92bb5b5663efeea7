"""No epsilon is below the true one: formulas and programs of others, and the ends of all settings."""

import math
import time

import dp_accounting
import mpmath
import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

import adamas
from adamas import DataLedger, Geometry, Ledger, _validate, calibrate, sampling
from adamas.accounting import composition, loss_distributions, privacy_loss
from adamas.accounting.budget import Budget
from adamas.accounting.composition import composed_epsilon
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from tests.support.command_line import call
from tests.support.small_runs import make_run

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
ACCOUNTANTS = ["pld", "rdp"]


def sampled(z, rate=1.0):
    return dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))


# --- the formulas of others -----------------------------------------------------------------------------


def gaussian_delta(epsilon, z):
    """Balle and Wang (2018), theorem 8, in as many digits as mpmath has."""
    z, epsilon = mpmath.mpf(z), mpmath.mpf(epsilon)
    return mpmath.ncdf(1 / (2 * z) - epsilon * z) - mpmath.exp(epsilon) * mpmath.ncdf(
        -1 / (2 * z) - epsilon * z
    )


def sampled_delta(epsilon, z, rate, *, more):
    """The delta of one sampled release, for one record less or one more, at any epsilon, in mpmath."""
    epsilon, z, q = mpmath.mpf(epsilon), mpmath.mpf(z), mpmath.mpf(rate)
    if not more:  # the mixture against its first part
        if mpmath.exp(epsilon) <= 1 - q:
            return 1 - mpmath.exp(epsilon)
        return q * gaussian_delta(mpmath.log(1 + mpmath.expm1(epsilon) / q), z)
    # By symmetry of the two: H_e(P, Q) = 1 - e^e + e^e H_-e(Q, P).
    return 1 - mpmath.exp(epsilon) + mpmath.exp(epsilon) * sampled_delta(-epsilon, z, rate, more=False)


def twice_sampled_delta(epsilon, z, rate, *, more):
    """The delta of two sampled releases: that of one of them, over the loss of the other one."""
    z, q = mpmath.mpf(z), mpmath.mpf(rate)

    def density(x, center):
        return mpmath.npdf(x, center, z)

    def integrand(x):
        mixed = (1 - q) * density(x, 0) + q * density(x, 1)
        upper, lower = (density(x, 0), mixed) if more else (mixed, density(x, 0))
        return upper * sampled_delta(epsilon - mpmath.log(upper / lower), z, rate, more=more)

    ends = [-12 * z, -6 * z, -3 * z, 0, 0.5, 1, 1 + 3 * z, 1 + 6 * z, 1 + 12 * z, 1 + 20 * z]
    # Where the loss of the other one is at the end of its range.
    kink = (-1 if more else 1) * epsilon - mpmath.log(1 - q)
    if mpmath.exp(kink) > 1 - q:
        ends.append(z**2 * mpmath.log(1 + mpmath.expm1(kink) / q) + mpmath.mpf(0.5))
    return mpmath.quad(integrand, sorted(ends))


@pytest.fixture(autouse=True)
def _digits():
    with mpmath.workdps(60):
        yield


# --- PLD ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-5, 1e-8, 1e-10, 1e-12, 1e-14, 1e-20, 1e-50, 1e-100])
@pytest.mark.parametrize(
    ("z", "steps"),
    [(0.02, 1), (0.3, 1), (1, 1), (5, 1), (30, 900), (100, 10**4), (20, 10**4), (100, 10**6), (1000, 10**6)],
)
def test_pld_is_the_exact_epsilon_of_gaussians_from_above(z, steps, delta):
    """Releases without sampling are one Gaussian; by PLD they are composed one by one all the same.

    Transforms without a tilt give 7.647 for 7.869 at delta 1e-14, with 10,000 releases of multiplier 100.
    """
    answer = privacy_loss.epsilon([(sampled(z), steps)], delta, ADD_OR_REMOVE, 1e-4)
    joint = z / mpmath.sqrt(steps)
    assert gaussian_delta(answer, joint) <= delta
    # Near, too: rounding losses up costs about this much.
    nearby = answer - 1e-5 - 5e-8 * steps * math.sqrt(answer)
    assert answer < 1e-9 or gaussian_delta(nearby, joint) > delta


def test_the_exact_epsilons_are_those_of_the_attack():
    for delta, true in ((1e-14, 7.8687), (1e-10, 6.5479)):
        answer = composed_epsilon([(sampled(100.0), 10**4)], delta)
        assert true < answer < true + 2e-3
        assert gaussian_delta(answer, 1.0) <= delta


@pytest.mark.parametrize("delta", [1e-3, 1e-7, 1e-12, 1e-30])
@pytest.mark.parametrize(("z", "rate"), [(0.1, 0.01), (0.5, 0.3), (1.0, 0.01), (4.0, 0.9), (30.0, 0.1)])
def test_pld_of_one_sampled_release_is_exact_from_above(z, rate, delta):
    answer = composed_epsilon([(sampled(z, rate), 1)], delta)
    true = max(sampled_delta(answer, z, rate, more=more) for more in (False, True))
    assert true <= delta
    lower = answer - 1e-3
    assert lower < 0 or max(sampled_delta(lower, z, rate, more=more) for more in (False, True)) > delta


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-14])
@pytest.mark.parametrize(("z", "rate"), [(0.7, 0.1), (2.0, 0.5)])
def test_pld_of_two_sampled_releases_is_exact_from_above(z, rate, delta):
    """Against mpmath's numerical integration."""
    answer = composed_epsilon([(sampled(z, rate), 2)], delta)
    with mpmath.workdps(30):
        true = max(twice_sampled_delta(answer, z, rate, more=more) for more in (False, True))
        below = max(twice_sampled_delta(answer - 2e-3, z, rate, more=more) for more in (False, True))
    assert true <= delta < below


@pytest.mark.parametrize(
    ("z", "rate", "steps", "delta"),
    [(1.0, 0.01, 1000, 1e-5), (0.6, 0.004, 3000, 1e-6), (4.0, 0.2, 500, 1e-7), (2.0, 0.05, 20, 1e-8)],
)
def test_pld_is_that_of_the_prv_accountant(z, rate, steps, delta):
    """Gopi, Lee and Wutschitz (2021), as Opacus has it, is right to a stated error."""
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
    """Both are upper bounds, and PLD is the tight one: less by RDP would show that one of them is wrong."""
    entries = [(sampled(z, rate), steps)]
    assert (
        composed_epsilon(entries, delta, "pld", coarse=False)
        <= composed_epsilon(entries, delta, "rdp") * 1.001
    )


@pytest.mark.slow
def test_many_kinds_of_events_together_cost_what_dp_accounting_says():
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
def test_the_deltas_of_one_release_are_those_of_dp_accounting(z, rate, kind):
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
    """Against a convolution by multiplication, where every term is right to the last digits."""
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


# --- RDP ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("order", [1.1, 2, 2.5, 10.9, 12, 63])
@pytest.mark.parametrize(("z", "rate"), [(0.1, 1e-3), (1.0, 0.01), (100.0, 1e-3), (1e4, 0.3), (1e6, 1e-6)])
def test_the_divergence_with_its_rounding_is_above_the_true_one(z, rate, order):
    """Against mpmath's numerical integration of the Renyi divergence."""
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


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("rate", [1.0, 0.5, 1e-3])
@pytest.mark.parametrize("z", [1e-300, 1e-160, 1e-157, 1e-154, 1e-100, 1e-3, 0.0199])
def test_next_to_no_noise_costs_everything(z, rate, accountant):
    """1/z^2 overflows, and the divergences of the smallest z were taken for 0."""
    assert composed_epsilon([(sampled(z, rate), 1)], 1e-5, accountant) == math.inf
    nested = dp_accounting.ComposedDpEvent(
        [sampled(1.0), dp_accounting.SelfComposedDpEvent(sampled(z, rate), 3)]
    )
    assert composed_epsilon([(nested, 1)], 1e-5, accountant) == math.inf
    recorded = Ledger()
    recorded.record(sampled(z, rate))
    assert recorded.epsilon(1e-5, accountant) == math.inf


@pytest.mark.parametrize("wrong", [math.nan, -1.0, 0.0, 3.0])
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_an_answer_below_the_cost_of_one_release_is_never_given(wrong, accountant, monkeypatch):
    """One release of z = 1 costs 4.377 at delta 1e-5, whatever an accountant says of ten."""
    monkeypatch.setattr(privacy_loss, "epsilon", lambda *_: wrong)
    monkeypatch.setattr(composition, "compute_epsilon", lambda *_: (wrong, 2))
    with pytest.raises(ArithmeticError, match="epsilon"):
        composed_epsilon([(sampled(1.0), 10)], 1e-5, accountant)


@pytest.mark.parametrize(("z", "rate"), [(1.0, 1.0), (0.5, 0.1), (0.02, 0.9), (100.0, 0.5)])
def test_the_cost_of_one_release_itself_is_plausible(z, rate):
    for delta in (1e-5, 1e-12):
        answer = composed_epsilon([(sampled(z, rate), 1)], delta, coarse=False)
        with pytest.raises(ArithmeticError):
            composition._plausible(answer * 0.999, [(sampled(z, rate), 1)], delta)


# --- the ends of all settings ---------------------------------------------------------------------------

SECONDS = 10.0  # of one processor


def answered(function):
    """Returns the result of a function within the time limit, or its refusal."""
    begun = time.process_time()
    try:
        found = function()
    except ValueError as error:
        found = str(error)
    assert time.process_time() - begun < SECONDS
    return found


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("steps", [1, 10**5, 2**24])
@pytest.mark.parametrize("rate", [1e-9, 0.01, 1.0])
@pytest.mark.parametrize("z", [0.02, 0.03, 2.0**20])
def test_extreme_settings_are_answered_in_time(z, rate, steps, accountant):
    found = answered(
        lambda: calibrate.epsilon(
            noise_multiplier=z, sampling_rate=rate, steps=steps, delta=1e-5, accountant=accountant
        )
    )
    assert found >= 0
    # Never less than the first release alone.
    assert sampled_delta(found, z, rate, more=False) <= 1e-5 * (1 + 1e-6) if found < math.inf else True


OUT_OF_RANGE = [1e-300, 1e-160, 1e-3, 0.0199, 2.0**21, 1e300]


@pytest.mark.parametrize("z", OUT_OF_RANGE)
@pytest.mark.parametrize(
    "door",
    [
        lambda z: calibrate.epsilon(noise_multiplier=z, sampling_rate=0.1, steps=9, delta=1e-5),
        lambda z: calibrate.epsilon(
            noise_multiplier=z, sampling_rate=0.1, steps=9, delta=1e-5, accountant="rdp"
        ),
        lambda z: calibrate.steps(noise_multiplier=z, sampling_rate=0.1, epsilon=1.0, delta=1e-5),
        lambda z: calibrate.epsilon_curve(noise_multiplier=z, sampling_rate=0.1, steps=9, delta=1e-5),
        lambda z: make_run(noise_multiplier=z),
        lambda z: make_run(noise_multiplier=z, max_epsilon=5.0),
        lambda z: make_run().extend(steps=2, noise_multiplier=z),
        lambda z: Ledger().record_release(sampling.Poisson(100, 10, seed=0), 0, z),
    ],
    ids=[
        "epsilon",
        "epsilon-rdp",
        "steps",
        "curve",
        "make_private",
        "max_epsilon",
        "extend",
        "record_release",
    ],
)
def test_noise_that_cannot_be_accounted_for_is_refused_by_name(door, z):
    words = answered(lambda: door(z))
    assert "noise_multiplier=" in words
    assert "between 0.02 and 1048576" in words


def test_privatize_refuses_it_as_well():
    p = torch.nn.Parameter(torch.zeros(2))
    charged = []
    with pytest.raises(ValueError, match="noise_multiplier=1e-160 between"):
        privatize(
            [],
            Geometry.ball([p]),
            noise_multiplier=1e-160,
            expected_batch_size=1.0,
            noise=GaussianNoise(0),
            charge=lambda _: charged.append(1) or (),
        )
    assert charged == []


@pytest.mark.parametrize("z", OUT_OF_RANGE)
def test_the_command_line_refuses_it(capsys, z):
    code, printed, error = call(
        capsys, "epsilon", f"--noise-multiplier={z}", "--sampling-rate=0.1", "--steps=3", "--accountant=rdp"
    )
    assert code != 0
    assert printed == ""
    assert "noise_multiplier" in error


def test_the_least_noise_is_that_of_the_largest_epsilon():
    """What the constant says of itself: an epsilon above 1000 at any reasonable delta, and at others."""
    for delta in (1e-5, 0.5, 0.999999):
        assert gaussian_delta(1000, _validate.LEAST_NOISE_MULTIPLIER) > delta
    _validate.noise_multiplier(z=0.0)
    _validate.noise_multiplier(z=0.02)
    _validate.noise_multiplier(z=2.0**20)


@pytest.mark.parametrize("delta", [1e-101, 1e-300])
def test_a_delta_below_what_can_be_bounded_is_refused(delta, tmp_path):
    for door in (
        lambda: composed_epsilon([(sampled(1.0), 1)], delta),
        lambda: composed_epsilon([(sampled(1.0), 1)], delta, "rdp"),
        lambda: calibrate.noise_multiplier(epsilon=1.0, delta=delta, sampling_rate=0.1, steps=10),
        lambda: calibrate.steps(epsilon=1.0, delta=delta, sampling_rate=0.1, noise_multiplier=1.0),
        lambda: Budget(1.0, delta),
        lambda: DataLedger.create(tmp_path / "l", epsilon=1.0, delta=delta),
        lambda: make_run(delta=delta),
    ):
        with pytest.raises(ValueError, match=r"delta=1e-\d+ >= 1e-100"):
            door()


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1e-3, 1000.0])
@pytest.mark.parametrize(("rate", "steps"), [(1.0, 1), (1.0, 10**6), (0.01, 10**5), (0.5, 2**24)])
def test_noise_for_extreme_budgets_is_found_in_time(epsilon, rate, steps):
    found = answered(
        lambda: calibrate.noise_multiplier(epsilon=epsilon, delta=1e-5, sampling_rate=rate, steps=steps)
    )
    if isinstance(found, str):
        assert "within reach" in found
    else:
        assert composed_epsilon([(sampled(found, rate), steps)], 1e-5) <= epsilon
        assert gaussian_delta(epsilon, found) <= 1e-5 or rate < 1


@pytest.mark.slow
def test_noise_between_the_steps_of_the_search_is_found():
    """Once a multiplier of 1/8 was more than enough, the search gave up."""
    z = calibrate.noise_multiplier(epsilon=500.0, delta=1e-5, sampling_rate=1.0, steps=1)
    assert 0.02 < z < 0.05
    assert gaussian_delta(500, z) <= 1e-5 < gaussian_delta(500, z - 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.02, 1.0, 2.0**20])
def test_budgets_of_extreme_events_are_searched_in_time(z, tmp_path):
    assert answered(lambda: Budget(1000.0, 1e-5).most(sampled(z, 0.01), 10**9)) >= 0
    data = DataLedger.create(tmp_path / "data.ledger", epsilon=1000.0, delta=1e-5)
    words = answered(lambda: _reserve(data, [(sampled(0.02, 0.5), 10**6)]))
    assert "above its budget of 1000" in words


def _reserve(data, entries):
    try:
        data.reserve("run", entries)
    except adamas.BudgetError as error:
        return str(error)


@pytest.mark.slow
def test_a_curve_of_extreme_settings_is_drawn_in_time():
    curve = answered(
        lambda: calibrate.epsilon_curve(noise_multiplier=0.05, sampling_rate=0.5, steps=10**5, delta=1e-5)
    )
    assert (np.diff(curve) >= 0).all()
    refused = answered(
        lambda: calibrate.epsilon_curve(noise_multiplier=1.0, sampling_rate=0.5, steps=10**12, delta=1e-5)
    )
    assert "steps=1000000000000 <= 16777216" in refused


def test_more_noise_than_any_training_takes_is_counted_as_the_most():
    for accountant in ACCOUNTANTS:
        most = composed_epsilon([(sampled(2.0**20, 0.5), 10)], 1e-9, accountant)
        assert composed_epsilon([(sampled(1e300, 0.5), 10)], 1e-9, accountant) == most


def test_a_long_run_with_a_limit_is_made_in_time():
    run = answered(lambda: make_run(steps=10**9, noise_multiplier=1.0, max_epsilon=5.0, accountant="rdp"))
    assert 1 < run.steps < 10**3
    assert torch.isfinite(torch.tensor(run.epsilon()))
