"""MicroAdam selects the largest entries, and its updates come from the window of the last selections."""

import math

import numpy as np
import pytest
import torch

from adamas import rules
from adamas.rules._micro_adam_state import BLOCK
from tests.reference import micro_adam as reference
from tests.support.micro_adam_steps import parameters, problem, step, vector


@pytest.mark.parametrize("bits", [None, 4])
def test_an_update_depends_on_the_last_selections_only(bits):
    # The test keeps every selection itself, and recomputes each update from the last ones.
    d, window, lr = 30, 4, 0.1
    p = vector(d)
    rule = rules.MicroAdam([p], lr=lr, eps=1e-2, density=0.1, window=window, bits=bits)
    rng = np.random.default_rng(0)
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    for t in range(1, 6 * window):
        # Three entries, different at each step, outweigh any error that has accumulated elsewhere.
        g = np.zeros(d)
        chosen = rng.choice(d, 3, replace=False)
        g[chosen] = rng.choice([-1.0, 1.0], 3) * rng.integers(2, 9, 3)  # exact in bfloat16
        (update,) = step(rule, [p], [g])
        rows.append((chosen, g[chosen]))
        m, v = np.zeros(d), np.zeros(d)
        for age, (index, value) in enumerate(reversed(rows[-window:])):
            m[index] += 0.9**age * value
            v[index] += 0.999**age * value**2
        m, v = 0.1 * m / (1 - 0.9**t), 0.001 * v / (1 - 0.999**t)
        np.testing.assert_allclose(
            update, -lr * m / (1e-2 + np.sqrt(v)), rtol=1e-9, atol=1e-12, err_msg=str(t)
        )


def test_a_constant_gradient_finally_moves_by_six_and_a_half_times_lr():
    p = vector(4)
    rule = rules.MicroAdam([p], lr=1.0, eps=1e-20, density=0.5, bits=None)
    for t in range(1, 301):
        (update,) = step(rule, [p], [np.array([3.0, 0.0, -0.2, 0.0])])
        # The sums run over the window, the bias corrections over all steps.
        n = min(t, 10)
        m, v = (1 - 0.9**n) / (1 - 0.9**t), (1 - 0.999**n) / (1 - 0.999**t)
        np.testing.assert_allclose(update[[0, 2]], [-m / math.sqrt(v), m / math.sqrt(v)], rtol=1e-9)
    # The update is lr until the window is full, and then rises to this multiple of lr.
    assert (1 - 0.9**10) / math.sqrt(1 - 0.999**10) == pytest.approx(6.528, abs=5e-4)


@pytest.mark.parametrize("size", [7.0, -1e-2])
def test_one_large_gradient_fades_at_the_same_rate_whatever_its_size(size):
    p = vector(4)
    rule = rules.MicroAdam([p], lr=1.0, eps=1e-20, density=0.25, bits=None)
    for _ in range(200):
        step(rule, [p], [np.array([1e-3, 0.0, 0.0, 0.0])])
    for age in range(15):
        (update,) = step(rule, [p], [np.array([1e-3, 0.0 if age else size, 0.0, 0.0])])
        t = 201 + age
        # For large t, 0.1 * 0.9^age / sqrt(0.001 * 0.999^age) = 3.16 * 0.9005^age, within the window.
        law = math.sqrt(10) * (0.9 / math.sqrt(0.999)) ** age * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        expected = -math.copysign(law, size) if age < 10 else 0.0
        assert update[1] == pytest.approx(expected, rel=1e-9, abs=1e-12), age


def test_with_window_correction_a_constant_gradient_moves_by_lr():
    p = vector(2)
    rule = rules.MicroAdam([p], lr=1.0, density=1.0, bits=None, window_correction=True)
    for _ in range(40):
        (update,) = step(rule, [p], [np.array([3.0, -0.2])])
        np.testing.assert_allclose(update, [-1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize("scope", ["block", "tensor", "global"])
@pytest.mark.parametrize("bits", [None, 4])
def test_at_most_window_times_k_coordinates_move(scope, bits):
    window, density = 3, 0.05
    starts, gradients = problem()
    params = parameters(starts)
    rule = rules.MicroAdam(params, lr=0.1, density=density, window=window, bits=bits, scope=scope)
    sizes = [p.numel() for p in params]
    shares = reference.selections(sizes, scope, density, BLOCK)
    most = 0
    for g in gradients:
        moved = np.concatenate(step(rule, params, g)) != 0
        most = max(most, int(moved.sum()))
        for part, k in shares:
            assert moved[part].sum() <= window * k
    assert most > 2 * sum(k for _, k in shares)  # more than one selection counts


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "sorted", "few sizes", "equal", "half zero"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bits", [None, 4])
def test_the_largest_entries_of_each_block_are_selected(kind, dtype, bits):
    d = 2 * BLOCK + 777
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], d)
    sizes = {
        "normal": np.abs(rng.normal(size=d)),
        "heavy tails": rng.lognormal(0, 8, d),
        "sorted": np.sort(rng.random(d)) + 0.1,
        "few sizes": rng.integers(1, 5, d).astype(float),
        "equal": np.ones(d),
        "half zero": np.where(rng.random(d) < 0.5, 0.0, rng.random(d) + 0.1),
    }[kind]
    sizes = sizes.astype(np.float32).astype(float)  # exact in both dtypes
    p = vector(d, dtype)
    rule = rules.MicroAdam([p], lr=0.1, density=0.01, bits=bits)
    (update,) = step(rule, [p], [signs * sizes])
    for start in range(0, d, BLOCK):
        block, moved = sizes[start : start + BLOCK], update[start : start + BLOCK] != 0
        assert moved.sum() == math.ceil(0.01 * len(block))
        assert block[moved].min() >= block[~moved].max()
    # Adam's first step: lr against the sign of the entry, unless the entry is near eps.
    large = (update != 0) & (sizes > 1e-3)
    np.testing.assert_allclose(update[large], -0.1 * signs[large], rtol=1e-2 if bits else 1e-4)


def test_an_entry_accumulates_until_it_is_selected():
    # With bits=None the error is exact: an entry of 0.3 is selected once it has accumulated more than 1.
    p = vector(4)
    rule = rules.MicroAdam([p], lr=0.1, eps=1e6, density=0.25, window=1, bits=None)
    selected, values = [], []
    for _ in range(8):
        (update,) = step(rule, [p], [np.array([1.0, 0.3, 0.0, 0.0])])
        (index,) = np.flatnonzero(update)
        selected.append(int(index))
        values.append(-update[index])
    assert selected == [0, 0, 0, 1, 0, 0, 0, 1]
    # eps is so large that an update is proportional to the selected value: 1.2 first, and then 2.0.
    np.testing.assert_allclose(values[3] / (0.1 / (1 - 0.9**4)), 1.2 * 0.1 / 1e6, rtol=1e-4)
    np.testing.assert_allclose(values[4] / (0.1 / (1 - 0.9**5)), 2.0 * 0.1 / 1e6, rtol=1e-4)
