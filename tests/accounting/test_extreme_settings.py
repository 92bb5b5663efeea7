"""Extreme settings are answered within seconds, or refused by name."""

import math
import time

import numpy as np
import pytest
import torch

import adamas
from adamas import DataLedger, Geometry, Ledger, _validate, calibrate, sampling
from adamas.accounting.budget import Budget
from adamas.accounting.composition import composed_epsilon
from adamas.noise import GaussianNoise
from adamas.privatize import privatize
from tests.support.command_line import call
from tests.support.dp_events import every_accountant, sampled
from tests.support.exact_deltas import gaussian_delta, sampled_delta
from tests.support.small_runs import make_run

pytestmark = pytest.mark.usefixtures("digits")

SECONDS = 10.0  # limit of processor time


def answered(function):
    """Returns the result of a function, or the message of its ValueError; checks the time limit."""
    begun = time.process_time()
    try:
        found = function()
    except ValueError as error:
        found = str(error)
    assert time.process_time() - begun < SECONDS
    return found


@pytest.mark.slow
@every_accountant
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
    # The first release alone never costs more.
    assert sampled_delta(found, z, rate, more=False) <= 1e-5 * (1 + 1e-6) if found < math.inf else True


OUT_OF_RANGE = [1e-300, 1e-160, 1e-3, 0.0199, 2.0**21, 1e300]


@pytest.mark.parametrize("z", OUT_OF_RANGE)
@pytest.mark.parametrize(
    "function",
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
def test_a_noise_multiplier_out_of_range_is_refused_by_name(function, z):
    message = answered(lambda: function(z))
    assert "noise_multiplier=" in message
    assert "between 0.02 and 1048576" in message


def test_privatize_refuses_a_noise_multiplier_out_of_range():
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
def test_the_command_line_refuses_a_noise_multiplier_out_of_range(capsys, z):
    code, printed, error = call(
        capsys, "epsilon", f"--noise-multiplier={z}", "--sampling-rate=0.1", "--steps=3", "--accountant=rdp"
    )
    assert code != 0
    assert printed == ""
    assert "noise_multiplier" in error


def test_the_least_noise_multiplier_costs_an_epsilon_above_1000():
    for delta in (1e-5, 0.5, 0.999999):
        assert gaussian_delta(1000, _validate.LEAST_NOISE_MULTIPLIER) > delta
    _validate.noise_multiplier(z=0.0)
    _validate.noise_multiplier(z=0.02)
    _validate.noise_multiplier(z=2.0**20)


@pytest.mark.parametrize("delta", [1e-101, 1e-300])
def test_a_delta_below_1e_100_is_refused(delta, tmp_path):
    for function in (
        lambda: composed_epsilon([(sampled(1.0, 1.0), 1)], delta),
        lambda: composed_epsilon([(sampled(1.0, 1.0), 1)], delta, "rdp"),
        lambda: calibrate.noise_multiplier(epsilon=1.0, delta=delta, sampling_rate=0.1, steps=10),
        lambda: calibrate.steps(epsilon=1.0, delta=delta, sampling_rate=0.1, noise_multiplier=1.0),
        lambda: Budget(1.0, delta),
        lambda: DataLedger.create(tmp_path / "l", epsilon=1.0, delta=delta),
        lambda: make_run(delta=delta),
    ):
        with pytest.raises(ValueError, match=r"delta=1e-\d+ >= 1e-100"):
            function()


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
def test_a_noise_multiplier_near_the_least_one_is_found():
    """The search does not stop at a multiplier of 1/8, which is more than enough."""
    z = calibrate.noise_multiplier(epsilon=500.0, delta=1e-5, sampling_rate=1.0, steps=1)
    assert 0.02 < z < 0.05
    assert gaussian_delta(500, z) <= 1e-5 < gaussian_delta(500, z - 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.02, 1.0, 2.0**20])
def test_budgets_of_extreme_events_are_searched_in_time(z, tmp_path):
    assert answered(lambda: Budget(1000.0, 1e-5).most(sampled(z, 0.01), 10**9)) >= 0
    data = DataLedger.create(tmp_path / "data.ledger", epsilon=1000.0, delta=1e-5)
    message = answered(lambda: reserve(data, [(sampled(0.02, 0.5), 10**6)]))
    assert "above its budget of 1000" in message


def reserve(data, entries):
    """Returns the message of the BudgetError, if there is one."""
    try:
        data.reserve("run", entries)
    except adamas.BudgetError as error:
        return str(error)


@pytest.mark.slow
def test_a_curve_of_extreme_settings_is_computed_in_time():
    curve = answered(
        lambda: calibrate.epsilon_curve(noise_multiplier=0.05, sampling_rate=0.5, steps=10**5, delta=1e-5)
    )
    assert (np.diff(curve) >= 0).all()
    refused = answered(
        lambda: calibrate.epsilon_curve(noise_multiplier=1.0, sampling_rate=0.5, steps=10**12, delta=1e-5)
    )
    assert "steps=1000000000000 <= 16777216" in refused


def test_a_noise_multiplier_above_the_largest_one_costs_as_much():
    for accountant in ("pld", "rdp"):
        least = composed_epsilon([(sampled(2.0**20, 0.5), 10)], 1e-9, accountant)
        assert composed_epsilon([(sampled(1e300, 0.5), 10)], 1e-9, accountant) == least


def test_a_long_run_with_max_epsilon_is_made_in_time():
    run = answered(lambda: make_run(steps=10**9, noise_multiplier=1.0, max_epsilon=5.0, accountant="rdp"))
    assert 1 < run.steps < 10**3
    assert torch.isfinite(torch.tensor(run.epsilon()))
