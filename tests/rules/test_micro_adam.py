"""MicroAdam: against its paper, and what its window, its selection and its 4-bit error must do."""

import copy
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adamas import PrivateGradient, rules
from adamas.rules import Rule
from adamas.rules._micro_adam_state import BLOCK
from tests.reference import micro_adam as reference

STEPS = 50
SHAPES = [(9, 7), (40,), ()]
RATES = [0.1 / (1 + 0.05 * t) for t in range(STEPS)]


# --- problems -------------------------------------------------------------------------------------------


def problem(
    shapes: Sequence[tuple[int, ...]] = SHAPES, steps: int = STEPS, seed: int = 0
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Flat starting points, and the private gradients of each step."""
    rng = np.random.default_rng(seed)
    sizes = [math.prod(shape) for shape in shapes]
    starts = [rng.normal(size=size) for size in sizes]
    widths = [rng.lognormal(-1, 1, size) for size in sizes]
    return starts, [[rng.normal(0.2, width) for width in widths] for _ in range(steps)]


def parameters(
    starts: Sequence[np.ndarray],
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    return [
        nn.Parameter(torch.tensor(start, dtype=dtype).reshape(shape))
        for start, shape in zip(starts, shapes, strict=True)
    ]


def step(rule: Rule, params: Sequence[Tensor], gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One step on these private gradients; the updates, flat."""
    before = [p.detach().clone() for p in params]
    PrivateGradient(
        {p: torch.tensor(g, dtype=p.dtype).reshape(p.shape) for p, g in zip(params, gradients, strict=True)},
        dict.fromkeys(params, 0.1),
    ).write_to(rule)
    rule.step()
    return [(p.detach() - b).flatten().double().numpy() for p, b in zip(params, before, strict=True)]


def vector(d: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return nn.Parameter(torch.zeros(d, dtype=dtype))


def assert_near(params: Sequence[Tensor], expected: Sequence[np.ndarray], within: float, what: str) -> None:
    """Within a part of each tensor's largest value."""
    for p, theta in zip(params, expected, strict=True):
        off = np.abs(p.detach().flatten().numpy() - theta).max()
        assert off <= within * np.abs(theta).max(), f"{what}: off by {off:.1e}"


# --- against the paper ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["block", "tensor", "global"])
@pytest.mark.parametrize("window_correction", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"betas": (0.7, 0.95), "eps": 1e-2, "weight_decay": 0.3, "window": 4},
        {"density": 1.0, "window": 1},
    ],
    ids=["defaults", "others", "dense"],
)
def test_fifty_steps_are_those_of_the_paper(scope, window_correction, options):
    options = {"density": 0.1} | options
    starts, gradients = problem()
    expected = run_reference(
        starts, gradients, options, scope=scope, window_correction=window_correction, block_size=BLOCK
    )
    params = parameters(starts)
    rule = rules.MicroAdam(
        params, lr=RATES[0], bits=None, scope=scope, window_correction=window_correction, **options
    )
    for t in range(STEPS):
        rule.param_groups[0]["lr"] = RATES[t]
        step(rule, params, gradients[t])
        assert_near(params, expected[t][0], 1e-10, f"step {t + 1}")


def run_reference(
    starts: Sequence[np.ndarray], gradients: list[list[np.ndarray]], options: dict[str, Any], **more: Any
) -> list[Any]:
    given = dict(options)
    if "betas" in given:
        given["beta1"], given["beta2"] = given.pop("betas")
    if "weight_decay" in given:
        given["lam"] = given.pop("weight_decay")
    return reference.micro_adam(starts, gradients, RATES, **given, **more)


@pytest.mark.parametrize("scope", ["block", "tensor", "global"])
def test_each_block_of_a_long_tensor_has_its_own_share(scope):
    # Two whole blocks and a short one, whose entries are of very different sizes.
    shapes = [(2 * BLOCK + 300,), (5,)]
    starts, gradients = problem(shapes, steps=15)
    scale = np.repeat([1.0, 0.1, 10.0], [BLOCK, BLOCK, 300])
    gradients = [[scale * long, short] for long, short in gradients]
    expected = reference.micro_adam(starts, gradients, RATES[:15], scope=scope, block_size=BLOCK)
    params = parameters(starts, shapes)
    rule = rules.MicroAdam(params, bits=None, scope=scope)
    for t in range(15):
        rule.param_groups[0]["lr"] = RATES[t]
        step(rule, params, gradients[t])
        assert_near(params, expected[t][0], 1e-10, f"step {t + 1}")


def test_the_scopes_and_the_correction_of_the_window_are_different_algorithms():
    starts, gradients = problem()
    ends = [
        run_reference(starts, gradients, {"density": 0.1}, scope=scope, block_size=20, window_correction=way)
        for scope in ("block", "tensor", "global")
        for way in (False, True)
    ]
    flat = [np.concatenate(run[-1][0]) for run in ends]
    assert min(np.abs(a - b).max() for i, a in enumerate(flat) for b in flat[:i]) > 1e-3


def test_groups_share_one_global_selection_and_keep_their_rates():
    starts, gradients = problem()
    params, twins = parameters(starts), parameters(starts)
    options = {"bits": None, "scope": "global", "density": 0.1}
    rule = rules.MicroAdam(params, lr=0.1, **options)
    grouped = rules.MicroAdam([{"params": twins[:1]}, {"params": twins[1:]}], lr=0.1, **options)
    for g in gradients:
        step(rule, params, g)
        step(grouped, twins, g)
        for p, twin in zip(params, twins, strict=True):
            assert torch.equal(p, twin)


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["block", "tensor", "global"])
@pytest.mark.parametrize("bucket_size", [16, 512])
@pytest.mark.parametrize("window_correction", [False, True])
def test_with_four_bits_the_codes_and_steps_are_those_of_the_paper(scope, bucket_size, window_correction):
    starts, gradients = problem()
    options = {
        "eps": 1e-3,
        "density": 0.1,
        "bits": 4,
        "bucket_size": bucket_size,
        "scope": scope,
        "window_correction": window_correction,
    }
    stored = {"block_size": BLOCK, "bfloat16_values": True, "float32_statistics": True}
    expected = reference.micro_adam(starts, gradients, RATES, **options, **stored)
    assert len(np.unique(np.concatenate(expected[-1][1]))) == 16
    params = parameters(starts)
    rule = rules.MicroAdam(params, lr=RATES[0], **options)
    for t in range(STEPS):
        rule.param_groups[0]["lr"] = RATES[t]
        step(rule, params, gradients[t])
        assert_near(params, expected[t][0], 1e-6, f"step {t + 1}")
        # A gradient that cancels the error: if one code were another, that entry would be left with at least
        # u, be selected, and move by about 3 lr.
        cancelling = [-e for e in expected[t][2]]
        probed = reference.micro_adam(
            starts, [*gradients[: t + 1], cancelling], [*RATES[: t + 1], RATES[t]], **options, **stored
        )
        twin = copy.deepcopy(rule)
        twins = [p for group in twin.param_groups for p in group["params"]]
        step(twin, twins, cancelling)
        for p, theta in zip(twins, probed[-1][0], strict=True):
            np.testing.assert_allclose(p.detach().flatten().numpy(), theta, atol=1e-3 * RATES[t])


# --- the window -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [None, 4])
def test_the_window_holds_the_last_rows_and_no_others(bits):
    # Every selected row is kept beside the rule, and the update computed anew from the last ones.
    d, window, lr = 30, 4, 0.1
    p = vector(d)
    rule = rules.MicroAdam([p], lr=lr, eps=1e-2, density=0.1, window=window, bits=bits)
    rng = np.random.default_rng(0)
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    for t in range(1, 6 * window):
        # Three entries outweigh all that can have gathered elsewhere, and differ from step to step.
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


def test_a_constant_gradient_moves_by_six_and_a_half_rates_in_the_end():
    p = vector(4)
    rule = rules.MicroAdam([p], lr=1.0, eps=1e-20, density=0.5, bits=None)
    for t in range(1, 301):
        (update,) = step(rule, [p], [np.array([3.0, 0.0, -0.2, 0.0])])
        # The sums are those of the window, the normalisers those of all steps.
        n = min(t, 10)
        m, v = (1 - 0.9**n) / (1 - 0.9**t), (1 - 0.999**n) / (1 - 0.999**t)
        np.testing.assert_allclose(update[[0, 2]], [-m / math.sqrt(v), m / math.sqrt(v)], rtol=1e-9)
    # So it is lr until the window is full, and then rises to this.
    assert (1 - 0.9**10) / math.sqrt(1 - 0.999**10) == pytest.approx(6.528, abs=5e-4)


@pytest.mark.parametrize("size", [7.0, -1e-2])
def test_one_hit_fades_whatever_its_size_and_leaves_the_window(size):
    p = vector(4)
    rule = rules.MicroAdam([p], lr=1.0, eps=1e-20, density=0.25, bits=None)
    for _ in range(200):
        step(rule, [p], [np.array([1e-3, 0.0, 0.0, 0.0])])
    for age in range(15):
        (update,) = step(rule, [p], [np.array([1e-3, 0.0 if age else size, 0.0, 0.0])])
        t = 201 + age
        # In the end 0.1 * 0.9^age / sqrt(0.001 * 0.999^age) = 3.16 * 0.9005^age.
        law = math.sqrt(10) * (0.9 / math.sqrt(0.999)) ** age * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        expected = -math.copysign(law, size) if age < 10 else 0.0
        assert update[1] == pytest.approx(expected, rel=1e-9, abs=1e-12), age


def test_with_window_correction_a_constant_gradient_moves_by_the_rate():
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
    assert most > 2 * sum(k for _, k in shares)  # the window is used


# --- the selection --------------------------------------------------------------------------------------


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
    sizes = sizes.astype(np.float32).astype(float)  # the same numbers in both types
    p = vector(d, dtype)
    rule = rules.MicroAdam([p], lr=0.1, density=0.01, bits=bits)
    (update,) = step(rule, [p], [signs * sizes])
    for start in range(0, d, BLOCK):
        block, moved = sizes[start : start + BLOCK], update[start : start + BLOCK] != 0
        assert moved.sum() == math.ceil(0.01 * len(block))
        assert block[moved].min() >= block[~moved].max()
    # The sign of the entry itself, and Adam's first step: lr, unless eps is near.
    large = (update != 0) & (sizes > 1e-3)
    np.testing.assert_allclose(update[large], -0.1 * signs[large], rtol=1e-2 if bits else 1e-4)


def test_what_was_not_selected_is_selected_when_it_has_grown():
    # Without bits the error is exact: an entry of 0.3 waits until it has more than 1.
    p = vector(4)
    rule = rules.MicroAdam([p], lr=0.1, eps=1e6, density=0.25, window=1, bits=None)
    selected, values = [], []
    for _ in range(8):
        (update,) = step(rule, [p], [np.array([1.0, 0.3, 0.0, 0.0])])
        (index,) = np.flatnonzero(update)
        selected.append(int(index))
        values.append(-update[index])
    assert selected == [0, 0, 0, 1, 0, 0, 0, 1]
    # eps is so large that an update is in proportion to its value: 1.2 at the first change, and then 2.0.
    np.testing.assert_allclose(values[3] / (0.1 / (1 - 0.9**4)), 1.2 * 0.1 / 1e6, rtol=1e-4)
    np.testing.assert_allclose(values[4] / (0.1 / (1 - 0.9**5)), 2.0 * 0.1 / 1e6, rtol=1e-4)


# --- the 4-bit error ------------------------------------------------------------------------------------

# Errors from -1 to 1: u = 2/15. A release of 3 on top brings them to [2, 4], where bfloat16 has steps of
# 1/64, fine enough to tell all 16 levels apart.
LOW, HIGH, LIFT = -1.0, 1.0, 3.0
UNIT = (HIGH - LOW) / 15


def decoded(errors: np.ndarray, **options: Any) -> np.ndarray:
    """What the rule makes of these errors when it stores them, read from its next update.

    The first release puts the errors beside as many larger entries, which are selected; the second lifts the
    errors alone, so that they are. eps is so large that the update is in proportion to what was selected.
    """
    k, eps = len(errors), 1e9
    p = vector(2 * k)
    rule = rules.MicroAdam(
        [p], lr=1.0, eps=eps, density=0.5, window=1, bits=4, bucket_size=2 * k, scope="tensor", **options
    )
    step(rule, [p], [np.concatenate([errors, np.full(k, 5.0)])])
    (update,) = step(rule, [p], [np.concatenate([np.full(k, LIFT), np.zeros(k)])])
    assert not update[k:].any()
    return -update[:k] * eps * (1 - 0.9**2) / 0.1 - LIFT


def test_nearest_rounding_has_the_codes_of_the_paper_and_an_error_of_at_most_half_a_unit():
    rng = np.random.default_rng(0)
    errors = np.concatenate([[LOW, HIGH], rng.uniform(LOW, HIGH, 1000)])
    found = decoded(errors)
    codes, expected = reference.quantize(errors, 4, len(errors), False)
    assert len(np.unique(codes)) == 16
    np.testing.assert_array_equal(np.round((found - LOW) / UNIT), codes)
    np.testing.assert_allclose(found, expected, atol=1 / 128 + 1e-6)  # bfloat16 between 2 and 4
    assert np.abs(found - errors).max() <= UNIT / 2 + 1 / 128


def test_a_tie_is_rounded_up():
    errors = np.concatenate([[0.0, 15.0], np.arange(15) + 0.5]) / 8  # u = 1/8: exact in binary
    k = len(errors)
    p = vector(2 * k)
    rule = rules.MicroAdam(
        [p], lr=1.0, eps=1e9, density=0.5, window=1, bits=4, bucket_size=2 * k, scope="tensor"
    )
    step(rule, [p], [np.concatenate([errors, np.full(k, 5.0)])])
    (update,) = step(rule, [p], [np.concatenate([np.full(k, 2.0), np.zeros(k)])])
    found = -update[:k] * 1e9 * (1 - 0.9**2) / 0.1 - 2.0
    np.testing.assert_allclose(found, np.concatenate([[0, 15], np.arange(15) + 1]) / 8, atol=1e-6)


def test_each_bucket_has_its_own_range_and_a_constant_bucket_is_exact():
    # Buckets of 8: four that are selected, then four of errors, of which the third is constant and the last
    # has 7 entries only.
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
    p = vector(64 - 1)
    rule = rules.MicroAdam(
        [p], lr=1.0, eps=1e9, density=32 / 63, window=1, bits=4, bucket_size=8, scope="tensor"
    )
    step(rule, [p], [np.concatenate([selected, errors[:31]])])
    (update,) = step(rule, [p], [np.concatenate([np.zeros(32), np.full(31, 2.0)])])
    found = -update[32:] * 1e9 * (1 - 0.9**2) / 0.1 - 2.0
    _, expected = reference.quantize(errors[:31], 4, 8, True)
    np.testing.assert_allclose(found, expected, atol=1 / 128 + 1e-6)  # as fine as bfloat16 is
    np.testing.assert_allclose(found[16:24], 0.25, atol=1e-6)  # 2.25 is a bfloat16 number


def test_stochastic_rounding_is_unbiased_and_nearest_rounding_is_not():
    # Four values, each 5000 times, at 0.1, 0.3, 0.5 and 0.8 of the way from one level to the next.
    shares = np.array([0.1, 0.3, 0.5, 0.8])
    values = LOW + UNIT * (np.array([2, 6, 9, 13]) + shares)
    errors = np.concatenate([[LOW, HIGH], np.repeat(values, 5000)])
    codes = np.round((decoded(errors, rounding="stochastic") - LOW) / UNIT)
    assert codes[0] == 0
    assert codes[1] == 15
    up = (codes[2:].reshape(4, 5000) - [[2], [6], [9], [13]]).astype(int)
    assert set(np.unique(up)) == {0, 1}
    # Binomial: 5 standard deviations, a false alarm in 4 x 10^5 for the four together.
    deviation = np.sqrt(shares * (1 - shares) / 5000)
    assert (np.abs(up.mean(axis=1) - shares) < 5 * deviation).all()
    # Neighbours are rounded independently: their correlation has the standard deviation 1/sqrt(5000) = 1.4%.
    for row in up:
        assert abs(np.corrcoef(row[:-1], row[1:])[0, 1]) < 5 / math.sqrt(5000)

    nearest = np.round((decoded(errors) - LOW) / UNIT)[2:].reshape(4, 5000) - [[2], [6], [9], [13]]
    assert (np.abs(nearest.mean(axis=1) - shares) > 5 * deviation).all()


def test_stochastic_rounding_differs_from_step_to_step():
    errors = np.concatenate([[LOW, HIGH], np.full(500, LOW + 7.5 * UNIT)])
    k = len(errors)
    p = vector(2 * k)
    rule = rules.MicroAdam(
        [p],
        lr=1.0,
        eps=1e9,
        density=0.5,
        window=1,
        bits=4,
        bucket_size=2 * k,
        scope="tensor",
        rounding="stochastic",
    )
    seen = []
    for _ in range(2):
        step(rule, [p], [np.concatenate([errors, np.full(k, 5.0)])])
        (update,) = step(rule, [p], [np.concatenate([np.full(k, LIFT), np.full(k, 0.0)])])
        t = 2 * len(seen) + 2
        seen.append(np.round((-update[2:k] * 1e9 * (1 - 0.9**t) / 0.1 - LIFT - LOW) / UNIT))
    assert 0.3 < (seen[0] != seen[1]).mean() < 0.7  # 500 coins: 9 standard deviations


# --- memory, resuming, bad input ------------------------------------------------------------------------


def test_the_state_has_less_than_one_byte_per_parameter():
    p = nn.Parameter(torch.zeros(1000, 1000))
    rule = rules.MicroAdam([p], density=0.01, window=10)
    for _ in range(2):
        PrivateGradient({p: torch.randn(1000, 1000)}, {p: 0.1}).write_to(rule)
        rule.step()
    p.grad = None
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in tensors_in(rule.state)
    }
    assert 0.5e6 < sum(storages.values()) <= 0.95e6
    # Nothing of size hides outside of the state.
    elsewhere = {name: value for name, value in vars(rule).items() if name not in ("state", "param_groups")}
    others = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in tensors_in(elsewhere)
    }
    others.pop(p.untyped_storage().data_ptr(), None)
    assert sum(others.values()) < 1e4


def tensors_in(nest: Any) -> list[Tensor]:
    if isinstance(nest, Tensor):
        return [nest]
    if isinstance(nest, dict):
        return [x for value in nest.values() for x in tensors_in(value)]
    if isinstance(nest, list | tuple):
        return [x for value in nest for x in tensors_in(value)]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scope", ["block", "tensor", "global"])
@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("stop", [1, 10, 23])
def test_a_resumed_rule_is_bit_equal(dtype, scope, bits, stop):
    starts, gradients = problem()
    params = parameters(starts, dtype=dtype)
    options = {"density": 0.1, "bits": bits, "scope": scope, "bucket_size": 16}
    rule = rules.MicroAdam(params, lr=0.1, **options)
    for t in range(stop):
        step(rule, params, gradients[t])
    file = io.BytesIO()
    torch.save(rule.state_dict(), file)
    file.seek(0)
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = rules.MicroAdam(twins, lr=123.0, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for t in range(stop, STEPS):
        step(rule, params, gradients[t])
        step(resumed, twins, gradients[t])
        for p, twin in zip(params, twins, strict=True):
            assert torch.equal(p, twin), f"step {t + 1}"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"density": 0.0}, "density"),
        ({"density": -0.1}, "density"),
        ({"density": 1.01}, "density"),
        ({"density": float("nan")}, "density"),
        ({"window": 0}, "window"),
        ({"window": -1}, "window"),
        ({"window": 2.5}, "window"),
        ({"bits": 8}, "bits"),
        ({"bits": 0}, "bits"),
        ({"rounding": "up"}, "rounding"),
        ({"scope": "layer"}, "scope"),
        ({"bucket_size": 0}, "bucket_size"),
        ({"bucket_size": 1.5}, "bucket_size"),
        ({"lr": -1.0}, "lr"),
        ({"eps": -1.0}, "eps"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"betas": (1.0, 0.9)}, "beta"),
    ],
    ids=str,
)
def test_bad_options_are_refused_by_name(options, named):
    with pytest.raises((ValueError, TypeError), match=named):
        rules.MicroAdam([vector(3)], **options)
