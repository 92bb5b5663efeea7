"""A curve of epsilon over steps is never below the true values, and ends on the last one."""

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from adamas import calibrate
from adamas.accounting.composition import composed_epsilon, epsilon_curve
from tests.support.dp_events import gaussian
from tests.support.recorded_ledgers import DELTA


def test_the_curve_of_a_long_run_bounds_the_true_one_and_ends_on_it():
    settings = {"noise_multiplier": 3.0, "sampling_rate": 0.005, "delta": 1e-5}
    curve = calibrate.epsilon_curve(steps=20_000, **settings)
    assert curve.shape == (20_000,)
    assert (np.diff(curve) >= 0).all()
    for step in (1, 20, 21, 500, 12_345, 19_999):
        true = calibrate.epsilon(steps=step, **settings)
        assert curve[step - 1] >= true
        if step >= 500:
            assert curve[step - 1] <= 1.3 * true  # a useful bound
    assert curve[-1] == calibrate.epsilon(steps=20_000, **settings)


def test_the_curve_of_fewer_steps_than_points_is_exact_up_to_rounding():
    settings = {"noise_multiplier": 5.0, "sampling_rate": 0.1, "delta": 1e-5}
    curve = calibrate.epsilon_curve(steps=3, **settings)
    true = [calibrate.epsilon(steps=step, **settings) for step in (1, 2, 3)]
    assert (curve >= true).all()
    np.testing.assert_allclose(curve, true, rtol=0.01)


def test_the_curve_under_another_relation_ends_on_its_epsilon():
    relation = NeighboringRelation.REPLACE_SPECIAL
    curve = epsilon_curve(gaussian(), 3, DELTA, relation)
    assert curve[-1] == composed_epsilon([(gaussian(), 3)], DELTA, "pld", relation)
    assert (curve[:-1] < curve[1:]).all()


def test_zero_noise_and_zero_points_are_refused():
    settings = {"noise_multiplier": 1.0, "sampling_rate": 0.01, "steps": 10, "delta": 1e-5}
    with pytest.raises(ValueError, match="noise_multiplier"):
        calibrate.epsilon_curve(**settings | {"noise_multiplier": 0.0})
    with pytest.raises(ValueError, match="points"):
        calibrate.epsilon_curve(**settings, points=0)
