"""The four-bit quantization of MicroAdam's error feedback: codes, buckets and rounding."""

import math
from typing import Any

import numpy as np
from torch import Tensor

from adamas import rules
from tests.reference import micro_adam as reference
from tests.support.micro_adam_steps import step, vector

# Errors from -1 to 1, with a unit of 2/15. A second gradient of 3 lifts them to [2, 4], where bfloat16 has a
# resolution of 1/64: fine enough to tell all 16 levels apart.
LOW, HIGH, LIFT = -1.0, 1.0, 3.0
UNIT = (HIGH - LOW) / 15
EPS = 1e9  # so large that an update is proportional to the selected value


def make_rule(d: int, **options: Any) -> tuple[Tensor, rules.MicroAdam]:
    """Makes a rule for d entries that selects half of them and forgets earlier selections."""
    p = vector(d)
    given = {"density": 0.5, "bucket_size": d} | options
    return p, rules.MicroAdam([p], lr=1.0, eps=EPS, window=1, bits=4, scope="tensor", **given)


def selected_values(update: np.ndarray, t: int) -> np.ndarray:
    """Recovers the selected values from the update of step t."""
    return -update * EPS * (1 - 0.9**t) / 0.1


def store_and_read(p: Tensor, rule: rules.MicroAdam, errors: np.ndarray, t: int = 2) -> np.ndarray:
    """Makes the rule quantize these errors; reads them from its next update, which is that of step t.

    The first gradient has the errors next to as many larger entries, which are selected. The second gradient
    lifts the errors, so that they are selected.
    """
    k = len(errors)
    step(rule, [p], [np.concatenate([errors, np.full(k, 5.0)])])
    (update,) = step(rule, [p], [np.concatenate([np.full(k, LIFT), np.zeros(k)])])
    assert not update[k:].any()
    return selected_values(update[:k], t) - LIFT


def decoded(errors: np.ndarray, **options: Any) -> np.ndarray:
    """Quantizes errors with a new rule, and returns what it reads back."""
    return store_and_read(*make_rule(2 * len(errors), **options), errors)


def test_nearest_rounding_has_the_papers_codes_and_is_off_by_at_most_half_a_unit():
    rng = np.random.default_rng(0)
    errors = np.concatenate([[LOW, HIGH], rng.uniform(LOW, HIGH, 1000)])
    found = decoded(errors)
    codes, expected = reference.quantize(errors, 4, len(errors), False)
    assert len(np.unique(codes)) == 16
    np.testing.assert_array_equal(np.round((found - LOW) / UNIT), codes)
    np.testing.assert_allclose(found, expected, atol=1 / 128 + 1e-6)  # the rounding of bfloat16 in [2, 4]
    assert np.abs(found - errors).max() <= UNIT / 2 + 1 / 128


def test_a_tie_is_rounded_up():
    errors = np.concatenate([[0.0, 15.0], np.arange(15) + 0.5]) / 8  # a unit of 1/8, exact in binary
    found = decoded(errors)
    np.testing.assert_allclose(found, np.concatenate([[0, 15], np.arange(15) + 1]) / 8, atol=1e-6)


def test_each_bucket_has_its_own_range_and_a_constant_bucket_is_exact():
    # Buckets of 8: four of entries that are selected, then four of errors. The third bucket of errors is
    # constant, and the last one has 7 entries only.
    generator = np.random.default_rng(0)
    errors = np.concatenate(
        [
            generator.uniform(-1, 1, 8),
            generator.uniform(-0.01, 0.01, 8),
            np.full(8, 0.25),
            generator.uniform(-0.5, 0.1, 8),
        ]
    )
    selected = np.full(32, 5.0)
    p, rule = make_rule(63, density=32 / 63, bucket_size=8)
    step(rule, [p], [np.concatenate([selected, errors[:31]])])
    (update,) = step(rule, [p], [np.concatenate([np.zeros(32), np.full(31, 2.0)])])
    found = selected_values(update[32:], 2) - 2.0
    _, expected = reference.quantize(errors[:31], 4, 8, True)
    np.testing.assert_allclose(found, expected, atol=1 / 128 + 1e-6)  # the resolution of bfloat16
    np.testing.assert_allclose(found[16:24], 0.25, atol=1e-6)  # 2.25 is exact in bfloat16


def test_stochastic_rounding_is_unbiased_and_nearest_rounding_is_not():
    # Four values, 5000 of each, at 0.1, 0.3, 0.5 and 0.8 of the way from one level to the next.
    shares = np.array([0.1, 0.3, 0.5, 0.8])
    values = LOW + UNIT * (np.array([2, 6, 9, 13]) + shares)
    errors = np.concatenate([[LOW, HIGH], np.repeat(values, 5000)])
    codes = np.round((decoded(errors, rounding="stochastic") - LOW) / UNIT)
    assert codes[0] == 0
    assert codes[1] == 15
    up = (codes[2:].reshape(4, 5000) - [[2], [6], [9], [13]]).astype(int)
    assert set(np.unique(up)) == {0, 1}
    # 5 standard deviations of a binomial: for all four a false alarm in 4 x 10^5.
    deviation = np.sqrt(shares * (1 - shares) / 5000)
    assert (np.abs(up.mean(axis=1) - shares) < 5 * deviation).all()
    # Neighbours are rounded independently: their correlation has a standard deviation of 1/sqrt(5000) = 1.4%.
    for row in up:
        assert abs(np.corrcoef(row[:-1], row[1:])[0, 1]) < 5 / math.sqrt(5000)

    nearest = np.round((decoded(errors) - LOW) / UNIT)[2:].reshape(4, 5000) - [[2], [6], [9], [13]]
    assert (np.abs(nearest.mean(axis=1) - shares) > 5 * deviation).all()


def test_stochastic_rounding_differs_from_step_to_step():
    errors = np.concatenate([[LOW, HIGH], np.full(500, LOW + 7.5 * UNIT)])
    p, rule = make_rule(2 * len(errors), rounding="stochastic")
    seen = [np.round((store_and_read(p, rule, errors, t)[2:] - LOW) / UNIT) for t in (2, 4)]
    assert 0.3 < (seen[0] != seen[1]).mean() < 0.7  # 500 coin flips: 9 standard deviations
