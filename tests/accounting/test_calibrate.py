"""`adamas.calibrate` finds epsilon, noise multiplier or steps from the other two, and keeps the budget."""

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from adamas import calibrate
from adamas.accounting import composition
from adamas.accounting.composition import composed_epsilon
from tests.support.dp_events import every_accountant, sampled
from tests.support.exact_deltas import gaussian_delta

FULL_BATCH = {"sampling_rate": 1.0, "steps": 400, "delta": 1e-5}


def tick(z: float) -> float:
    """Returns the resolution to which the noise multiplier is searched."""
    return 1e-4 * 10 ** max(0, math.floor(math.log10(z)))


@pytest.mark.parametrize(
    ("accountant", "z"), [("pld", 1.3), ("rdp", 1.3), pytest.param("rdp", 20.0, id="rdp-largest-order")]
)
def test_epsilon_agrees_with_dp_accounting(accountant, z):
    q, steps, delta = 0.02, 300, 1e-6
    if accountant == "pld":
        theirs = PLDAccountant(value_discretization_interval=1e-4)
    else:
        theirs = RdpAccountant([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))
    theirs.compose(dp_accounting.SelfComposedDpEvent(sampled(z, q), steps))
    ours = calibrate.epsilon(
        noise_multiplier=z, sampling_rate=q, steps=steps, delta=delta, accountant=accountant
    )
    assert ours == pytest.approx(theirs.get_epsilon(delta), rel=1e-9)


def test_the_epsilon_of_one_gaussian_without_sampling_is_the_closed_form():
    z, epsilon = 1.5, 2.0
    delta = float(gaussian_delta(epsilon, z))
    ours = calibrate.epsilon(noise_multiplier=z, sampling_rate=1.0, steps=1, delta=delta)
    assert epsilon <= ours < epsilon + 1e-3  # PLD rounds up


@every_accountant
def test_without_noise_epsilon_is_infinite(accountant):
    epsilon = calibrate.epsilon(
        noise_multiplier=0, sampling_rate=0.01, steps=1, delta=1e-5, accountant=accountant
    )
    assert epsilon == math.inf


def test_epsilon_grows_with_steps_and_sampling_and_falls_with_noise_and_delta():
    base = {"noise_multiplier": 5.0, "sampling_rate": 0.05, "steps": 50, "delta": 1e-5}
    value = calibrate.epsilon(**base)
    assert calibrate.epsilon(**base | {"steps": 51}) > value
    assert calibrate.epsilon(**base | {"sampling_rate": 0.051}) > value
    assert calibrate.epsilon(**base | {"noise_multiplier": 5.1}) < value
    assert calibrate.epsilon(**base | {"delta": 2e-5}) < value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "sampling_rate", "steps", "accountant"),
    [
        pytest.param(0.01, 0.01, 100, "pld", id="tiny-pld"),
        pytest.param(0.2, 0.1, 10, "rdp", id="small-rdp"),
        pytest.param(1.0, 0.1, 100, "pld", id="one-pld"),
        pytest.param(1.0, 0.1, 10, "rdp", id="one-rdp"),
        pytest.param(1.0, 1.0, 10, "pld", id="full-batch-pld"),
        pytest.param(50.0, 1.0, 400, "pld", id="huge-pld"),
        pytest.param(50.0, 0.01, 100, "rdp", id="huge-rdp"),
    ],
)
def test_noise_multiplier_keeps_the_budget_and_one_tick_less_does_not(
    epsilon, sampling_rate, steps, accountant
):
    settings = {
        "sampling_rate": sampling_rate,
        "steps": steps,
        "delta": 1e-5,
        "accountant": accountant,
    }
    z = calibrate.noise_multiplier(epsilon=epsilon, **settings)
    assert z == pytest.approx(round(z / tick(z)) * tick(z), rel=1e-12)
    assert calibrate.epsilon(noise_multiplier=z, **settings) <= epsilon
    assert calibrate.epsilon(noise_multiplier=z - tick(z), **settings) > epsilon


@pytest.mark.slow
def test_noise_multiplier_and_steps_agree_with_epsilon_above_20():
    # Above 20, epsilon is computed in coarser cells. It must still be within the budget.
    fine = composed_epsilon([(sampled(5.5, 1.0), 400)], 1e-5, coarse=False)
    assert fine > 20
    z = calibrate.noise_multiplier(epsilon=fine, **FULL_BATCH)
    assert calibrate.epsilon(noise_multiplier=z, **FULL_BATCH) <= fine
    settings = {"noise_multiplier": 5.5, "sampling_rate": 1.0, "delta": 1e-5}
    steps = calibrate.steps(epsilon=fine, **settings)
    assert calibrate.epsilon(steps=steps, **settings) <= fine


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5])
def test_the_search_for_a_tiny_budget_is_short_and_avoids_huge_epsilons(monkeypatch, epsilon):
    tried = []

    def watched(entries, *args, **kwargs):
        tried.append(entries[0][0].event.event.noise_multiplier)
        assert len(tried) < 100, "the search does not end"
        assert tried[-1] >= 1, "an epsilon of hundreds takes minutes and gigabytes to compute"
        return composed_epsilon(entries, *args, **kwargs)

    settings = {"sampling_rate": 0.01, "steps": 100, "delta": 1e-5}
    monkeypatch.setattr(composition, "composed_epsilon", watched)
    z = calibrate.noise_multiplier(epsilon=epsilon, **settings)
    monkeypatch.undo()
    assert 0.99 * epsilon < calibrate.epsilon(noise_multiplier=z, **settings) <= epsilon


def test_noise_multiplier_falls_with_the_budget_and_rises_with_the_steps():
    def z(epsilon, steps):
        return calibrate.noise_multiplier(
            epsilon=epsilon, delta=1e-5, sampling_rate=1.0, steps=steps, accountant="rdp"
        )

    assert z(1.0, 100) > z(2.0, 100) > z(4.0, 100)
    assert z(1.0, 50) < z(1.0, 100) < z(1.0, 200)


def test_noise_multiplier_for_another_mechanism_keeps_its_budget():
    def make_event(z):
        return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(z), 3)

    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    z = calibrate.noise_multiplier_for(make_event, epsilon=1.0, delta=1e-5, relation=relation)
    assert composed_epsilon([(make_event(z), 1)], 1e-5, "pld", relation) <= 1.0
    assert composed_epsilon([(make_event(z - tick(z)), 1)], 1e-5, "pld", relation) > 1.0


@pytest.mark.parametrize(
    ("noise_multiplier", "sampling_rate", "epsilon", "accountant"),
    [
        (5.0, 0.1, 1.0, "pld"),
        (4.0, 0.02, 0.5, "pld"),
        (1.0, 0.02, 3.0, "rdp"),
        pytest.param(3.0, 1.0, 0.67, "rdp", id="a-single-step"),
    ],
)
def test_steps_are_the_most_that_the_budget_covers(noise_multiplier, sampling_rate, epsilon, accountant):
    settings = {
        "noise_multiplier": noise_multiplier,
        "sampling_rate": sampling_rate,
        "delta": 1e-5,
        "accountant": accountant,
    }
    if sampling_rate == 1.0:
        epsilon = calibrate.epsilon(steps=1, **settings)
    steps = calibrate.steps(epsilon=epsilon, **settings)
    assert calibrate.epsilon(steps=steps, **settings) <= epsilon
    assert calibrate.epsilon(steps=steps + 1, **settings) > epsilon


def test_steps_and_noise_multiplier_are_inverse():
    settings = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 1.0}
    z = calibrate.noise_multiplier(steps=30, **settings)
    # One tick of z is worth 0.003 steps here, so rounding z up pays for no further step.
    assert calibrate.steps(noise_multiplier=z, **settings) == 30


EPSILON = {"noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 10, "delta": 1e-5}
NOISE = {"epsilon": 1.0, "sampling_rate": 0.01, "steps": 10, "delta": 1e-5}
STEPS = {"epsilon": 1.0, "sampling_rate": 0.01, "noise_multiplier": 1.0, "delta": 1e-5}
BAD = {
    "noise_multiplier": [
        (-1.0, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        ("1", TypeError),
    ],
    "sampling_rate": [(0.0, ValueError), (1.1, ValueError), (-0.1, ValueError), (None, TypeError)],
    "steps": [(0, ValueError), (-3, ValueError), (1.5, TypeError), (True, TypeError)],
    "delta": [(0.0, ValueError), (1.0, ValueError), (math.nan, ValueError), ("1e-5", TypeError)],
    "epsilon": [(0.0, ValueError), (-1.0, ValueError), (math.inf, ValueError), (math.nan, ValueError)],
    "accountant": [("prv", ValueError), (None, ValueError)],
}


@pytest.mark.parametrize(
    ("function", "good", "name", "value", "error"),
    [
        pytest.param(function, good, name, value, error, id=f"{function.__name__}-{name}-{value}")
        for function, good in [
            (calibrate.epsilon, EPSILON),
            (calibrate.noise_multiplier, NOISE),
            (calibrate.steps, STEPS),
            (calibrate.epsilon_curve, EPSILON),
        ]
        for name, values in BAD.items()
        for value, error in values
        if name in good or (name == "accountant" and function is not calibrate.epsilon_curve)
    ],
)
def test_a_bad_argument_is_refused_by_name(function, good, name, value, error):
    with pytest.raises(error, match=name):
        function(**good | {name: value})


@every_accountant
def test_unreachable_budgets_are_refused(accountant):
    with pytest.raises(ValueError, match="within reach"):
        calibrate.noise_multiplier(
            epsilon=1e-9, delta=1e-12, sampling_rate=1.0, steps=1, accountant=accountant
        )
    with pytest.raises(ValueError, match=r"epsilon.* to pay for one step"):
        calibrate.steps(
            epsilon=0.1, delta=1e-5, noise_multiplier=1.0, sampling_rate=1.0, accountant=accountant
        )


@pytest.mark.parametrize("epsilon", [0.05, 0.103, 0.11])
def test_a_budget_below_what_rdp_resolves_is_refused(epsilon):
    given = {"delta": 1e-5, "sampling_rate": 0.01, "steps": 1000}
    with pytest.raises(ValueError, match=r"[uU]se accountant='pld'"):
        calibrate.noise_multiplier(epsilon=epsilon, **given, accountant="rdp")
    assert calibrate.noise_multiplier(epsilon=epsilon, **given) < 20


def test_rdp_is_no_reason_to_refuse_a_budget_that_it_resolves():
    given = {"delta": 1e-5, "sampling_rate": 0.01, "steps": 1000}
    for epsilon in (0.15, 0.3):
        assert calibrate.noise_multiplier(epsilon=epsilon, **given, accountant="rdp") < 10


def test_a_budget_for_more_steps_than_the_largest_number_is_refused():
    with pytest.raises(ValueError, match="fewer than 16777216 steps"):
        calibrate.steps(
            epsilon=1.0, delta=1e-2, noise_multiplier=5000.0, sampling_rate=1e-9, accountant="rdp"
        )


def test_a_budget_that_needs_no_noise_is_refused():
    with pytest.raises(ValueError, match="to need noise"):
        calibrate.noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=1e-6, steps=1)
