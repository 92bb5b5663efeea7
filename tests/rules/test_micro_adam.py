"""MicroAdam takes the steps of its paper, needs less than a byte per parameter, and resumes bit for bit."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adamas import PrivateGradient, rules
from adamas.rules._micro_adam_state import BLOCK
from tests.reference import micro_adam as reference
from tests.support.micro_adam_steps import STEPS, parameters, problem, step
from tests.support.rule_steps import saved_and_loaded

RATES = [0.1 / (1 + 0.05 * t) for t in range(STEPS)]


def assert_near(params: Sequence[Tensor], expected: Sequence[np.ndarray], within: float, what: str) -> None:
    """Compares with a tolerance of `within` times the largest value of each tensor."""
    for p, theta in zip(params, expected, strict=True):
        off = np.abs(p.detach().flatten().numpy() - theta).max()
        assert off <= within * np.abs(theta).max(), f"{what}: off by {off:.1e}"


def run_reference(
    starts: Sequence[np.ndarray], gradients: list[list[np.ndarray]], options: dict[str, Any], **more: Any
) -> list[Any]:
    """Runs the reference with options in the names of the rule, and `more` in its own names."""
    given = dict(options)
    if "betas" in given:
        given["beta1"], given["beta2"] = given.pop("betas")
    if "weight_decay" in given:
        given["lam"] = given.pop("weight_decay")
    return reference.micro_adam(starts, gradients, RATES, **given, **more)


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
def test_fifty_steps_match_the_paper(scope, window_correction, options):
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


@pytest.mark.parametrize("scope", ["block", "tensor", "global"])
def test_each_block_of_a_long_tensor_has_its_own_selection(scope):
    # Two whole blocks and a short one, with entries of very different sizes.
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


def test_scope_and_window_correction_change_the_steps():
    starts, gradients = problem()
    ends = [
        run_reference(starts, gradients, {"density": 0.1}, scope=scope, block_size=20, window_correction=way)
        for scope in ("block", "tensor", "global")
        for way in (False, True)
    ]
    flat = [np.concatenate(run[-1][0]) for run in ends]
    assert min(np.abs(a - b).max() for i, a in enumerate(flat) for b in flat[:i]) > 1e-3


def test_groups_share_one_global_selection():
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
def test_with_four_bits_codes_and_steps_match_the_paper(scope, bucket_size, window_correction):
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
        # The next gradient cancels the error. If a code were wrong, its entry would keep an error of at least
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
    # No large tensor is kept outside of the state.
    elsewhere = {name: value for name, value in vars(rule).items() if name not in ("state", "param_groups")}
    others = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for value in tensors_in(elsewhere)
    }
    others.pop(p.untyped_storage().data_ptr(), None)
    assert sum(others.values()) < 1e4


def tensors_in(nest: Any) -> list[Tensor]:
    """Lists the tensors in nested dicts, lists and tuples."""
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
    state = saved_and_loaded(rule.state_dict())
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = rules.MicroAdam(twins, lr=123.0, **options)
    resumed.load_state_dict(state)
    for t in range(stop, STEPS):
        step(rule, params, gradients[t])
        step(resumed, twins, gradients[t])
        for p, twin in zip(params, twins, strict=True):
            assert torch.equal(p, twin), f"step {t + 1}"
