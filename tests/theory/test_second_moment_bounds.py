"""Propositions 3 and 4 of DP-AdamBC match the tables of the paper, and the automatic floor matches them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from adamas import PrivateGradient, rules, theory
from tests.reference import adam_family

STEPS = [10, 100, 1000, 10_000]
TABLE_SETTING = {"noise_multiplier": 0.4, "batch_size": 256, "beta2": 0.999}
# Tables 3 and 4 of the paper as printed: (C, alpha) -> the bound at STEPS.
TABLE_3 = {
    (0.1, 0.01): [1.005e-07, 3.180e-08, 1.046e-08, 7.110e-09],
    (0.1, 0.05): [8.388e-08, 2.654e-08, 8.725e-09, 5.933e-09],
    (0.1, 0.10): [7.559e-08, 2.391e-08, 7.863e-09, 5.347e-09],
    (1.0, 0.01): [1.005e-06, 3.180e-06, 1.046e-06, 7.110e-07],
    (1.0, 0.05): [8.388e-06, 2.654e-06, 8.725e-07, 5.933e-07],
    (1.0, 0.10): [7.559e-06, 2.391e-06, 7.863e-07, 5.347e-07],
}
# Two cells of Table 3 differ from Proposition 3: (C, alpha, t) -> the value of the proposition. Both print
# its first branch, although the condition, sqrt(2 ln(2/alpha)) = 3.255 <= G = 3.148, does not hold. The cell
# of C = 1 also lacks a power of ten, since it must be 100 times that of C = 0.1.
TABLE_3_ERRATA = {(0.1, 0.01, 10): 1.039e-07, (1.0, 0.01, 10): 1.039e-05}
TABLE_4 = {
    (0.1, 0.01): [3.222e-05, 1.019e-05, 3.351e-06, 2.279e-06],
    (0.1, 0.05): [2.688e-05, 8.505e-06, 2.797e-06, 1.902e-06],
    (0.1, 0.10): [2.423e-05, 7.664e-06, 2.520e-06, 1.714e-06],
    (1.0, 0.01): [3.222e-03, 1.019e-03, 3.351e-04, 2.279e-04],
    (1.0, 0.05): [2.688e-03, 8.505e-04, 2.797e-04, 1.902e-04],
    (1.0, 0.10): [2.423e-03, 7.664e-04, 2.520e-04, 1.714e-04],
}


def cells(table):
    return [(*key, t, value) for key, row in table.items() for t, value in zip(STEPS, row, strict=True)]


def printed(value: float) -> str:
    return f"{value:.3e}"


@pytest.mark.parametrize(("clip_norm", "alpha", "t", "value"), cells(TABLE_3))
def test_proposition_3_as_stated_matches_table_3_to_all_digits(clip_norm, alpha, t, value):
    bound = theory.prop3_bound(t, clip_norm=clip_norm, alpha=alpha, constant="statement", **TABLE_SETTING)
    assert printed(bound) == printed(TABLE_3_ERRATA.get((clip_norm, alpha, t), value))


@pytest.mark.parametrize(("clip_norm", "alpha", "t"), TABLE_3_ERRATA)
def test_the_wrong_cells_of_table_3_print_the_first_branch_where_it_does_not_apply(clip_norm, alpha, t):
    phi = (0.4 * clip_norm / 256) ** 2
    g = math.sqrt((1 - 0.999 ** (2 * t)) / (1 - 0.999**2))
    nu, b, log = 4 * phi * g, 4 * phi, math.log(2 / alpha)
    first = math.sqrt(2 * log) * nu
    assert first > nu**2 / b
    mantissa, _ = printed((1 - 0.999) / (1 - 0.999**t) * first).split("e")
    assert mantissa == printed(TABLE_3[clip_norm, alpha][0]).split("e")[0]


@pytest.mark.parametrize(("clip_norm", "alpha", "t", "value"), cells(TABLE_4))
def test_proposition_4_matches_table_4_to_all_digits(clip_norm, alpha, t, value):
    bound = theory.prop4_bound(t, clip_norm=clip_norm, alpha=alpha, **TABLE_SETTING)
    assert printed(bound) == printed(value)


@pytest.mark.parametrize(("constant", "c"), [("proof", 2.0), ("statement", 4.0)])
@pytest.mark.parametrize("beta2", [0.0, 0.5, 0.99, 0.9999])
@pytest.mark.parametrize("t", [1, 3, 50, 5000])
@pytest.mark.parametrize("alpha", [1e-6, 0.05, 0.9])
def test_proposition_3_matches_the_reference_in_both_branches(t, beta2, alpha, constant, c):
    bound = theory.prop3_bound(
        t, noise_multiplier=1.5, clip_norm=0.7, batch_size=32, beta2=beta2, alpha=alpha, constant=constant
    )
    expected = adam_family.proposition_3(t, beta2, alpha, a=(1.5 * 0.7 / 32) ** 2, c=c)
    assert bound == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("alpha", "value"), [(0.05, 7.237e-08), (0.01, 1.039e-07)])
def test_the_deviation_after_few_steps_takes_the_second_branch(alpha, value):
    # At t = 10 the first branch, which Table 3 prints, does not apply.
    phi = (0.4 * 0.1 / 256) ** 2
    assert phi * theory.second_moment_deviation(10, 0.999, alpha) == pytest.approx(value, rel=5e-4)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("t", [1, 10, 1000])
def test_the_second_moment_of_noise_deviates_by_at_most_the_bound(t, alpha):
    rng = np.random.default_rng(0)
    d = 5000
    v = np.zeros(d)
    for _ in range(t):
        v = 0.999 * v + 0.001 * rng.normal(size=d) ** 2
    v_hat = v / (1 - 0.999**t)
    bound = theory.second_moment_deviation(t, 0.999, alpha)
    assert np.mean(np.abs(v_hat - 1) > bound) <= alpha
    # The bound is not vacuous: where the first branch applies, a third of it is too small.
    if t == 1000:
        assert np.mean(np.abs(v_hat - 1) > bound / 3) > alpha


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"step": 0, "beta2": 0.9}, ValueError, "step"),
        ({"step": 1.5, "beta2": 0.9}, TypeError, "step"),
        ({"step": 1, "beta2": 1.0}, ValueError, "beta2"),
        ({"step": 1, "beta2": -0.1}, ValueError, "beta2"),
        ({"step": 1, "beta2": 0.9, "alpha": 0.0}, ValueError, "alpha"),
        ({"step": 1, "beta2": 0.9, "alpha": 1.0}, ValueError, "alpha"),
    ],
)
def test_second_moment_deviation_refuses_bad_arguments(arguments, error, name):
    with pytest.raises(error, match=name):
        theory.second_moment_deviation(**arguments)


def test_by_default_proposition_3_is_the_deviation_times_the_noise_variance():
    phi = (0.4 * 0.1 / 256) ** 2
    for t in (1, 10, 1000):
        bound = theory.prop3_bound(t, clip_norm=0.1, alpha=0.02, **TABLE_SETTING)
        assert bound == pytest.approx(phi * theory.second_moment_deviation(t, 0.999, 0.02), rel=1e-12)


def test_proposition_4_takes_the_second_branch_for_small_batches():
    # B/sigma = 0.1, so nu = 2 G (1 + 0.1) Phi and b = 4 Phi. At t = 1, G = 1 and sqrt(2 L) 4 > 2.2.
    bound = theory.prop4_bound(1, noise_multiplier=10.0, clip_norm=1.0, batch_size=1, alpha=0.05)
    assert bound == pytest.approx(8 * math.log(40) * 100, rel=1e-12)
    # The first branch applies here, by hand: L = ln 2, sqrt(2 L) 4 = 4.71 <= 2.2 G = 49.
    bound = theory.prop4_bound(10**6, noise_multiplier=10.0, clip_norm=1.0, batch_size=1, alpha=1 - 1e-12)
    expected = 0.001 * math.sqrt(2 * math.log(2)) * 2 * 110 / math.sqrt(1 - 0.999**2)
    assert bound == pytest.approx(expected, rel=1e-9)


# Table 5 of the paper, measured on SNLI at C = 0.1: the deviation that 5% of the coordinates exceed.
@pytest.mark.parametrize(("t", "measured"), [(10, 2.063e-08), (100, 6.181e-09), (1000, 2.107e-09)])
def test_the_measured_deviations_are_below_proposition_3_and_far_below_proposition_4(t, measured):
    setting = TABLE_SETTING | {"clip_norm": 0.1, "alpha": 0.05}
    assert measured < theory.prop3_bound(t, **setting) < 4 * measured
    assert theory.prop4_bound(t, **setting) > 100 * measured


def test_the_bounds_are_zero_without_noise():
    setting = {"noise_multiplier": 0.0, "clip_norm": 1.0, "batch_size": 256}
    assert theory.prop3_bound(10, **setting) == theory.prop4_bound(10, **setting) == 0.0


@pytest.mark.parametrize("t", [1, 7, 1000])
def test_the_automatic_floor_equals_proposition_3(t):
    bound = theory.prop3_bound(t, noise_multiplier=0.4, clip_norm=0.1, batch_size=256, alpha=0.01)
    assert theory.automatic_floor(t, (0.4 * 0.1 / 256) ** 2, alpha=0.01) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("rule", [rules.AdamBC, rules.AdamWBC])
@pytest.mark.parametrize("beta2", [0.9, 0.999])
def test_rules_use_the_automatic_floor_by_default(rule, beta2):
    # The gradient is far below the noise, so v sits on the floor. Weight decay of a zero parameter is 0.
    phi = torch.tensor([0.0, 0.01, 4.0]).double()
    p = nn.Parameter(torch.zeros(3).double())
    optimizer = rule([p], lr=1.0, betas=(0.9, beta2))
    PrivateGradient({p: torch.full((3,), 1e-10).double()}, {p: phi}).write_to(optimizer)
    optimizer.step()
    torch.testing.assert_close(-p.detach(), 1e-10 / theory.automatic_floor(1, phi, beta2).sqrt())


def test_the_automatic_floor_of_a_tensor_is_elementwise():
    phi = torch.tensor([[0.0, 1e-20], [1e-8, 1.0]], dtype=torch.float64)
    floor = theory.automatic_floor(20, phi)
    assert floor.shape == phi.shape
    expected = [[theory.automatic_floor(20, value) for value in row] for row in phi.tolist()]
    torch.testing.assert_close(floor, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert floor[0, 0] == floor[0, 1] == theory.LEAST_FLOOR == 1e-16
