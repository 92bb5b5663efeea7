"""MicroAdam's compiled step equals that of torch bit for bit, whatever the gradients are."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adamas import rules
from adamas.rules import _micro_adam_kernel as kernel
from adamas.rules._micro_adam_state import BLOCK
from tests.support.micro_adam_kernels import assert_same, needs_numba, rule_for, step, steps_by

STEPS = 50
Kind = Callable[[int, int, torch.Generator], Tensor]


def rotating(n: int, t: int, generator: torch.Generator) -> Tensor:
    """Moves the large entries at each step, so that the last threshold is too high or too low."""
    sizes = 10.0 ** (torch.arange(n).roll(997 * t) % 7 - 3)
    return sizes * torch.randn(n, generator=generator)


KINDS: dict[str, Kind] = {
    "normal": lambda n, t, generator: 1e-3 * torch.randn(n, generator=generator),
    "heavy tails": lambda n, t, generator: (
        torch.randn(n, generator=generator) * torch.randn(n, generator=generator).mul(5).exp()
    ),
    "growing": lambda n, t, generator: 1.7**t * torch.randn(n, generator=generator),
    "shrinking": lambda n, t, generator: 0.1**t * torch.randn(n, generator=generator),
    "rotating": rotating,
    "equal": lambda n, t, generator: torch.full((n,), 0.25),
    "few sizes": lambda n, t, generator: torch.randint(-2, 3, (n,), generator=generator).float(),
    "zeros": lambda n, t, generator: torch.zeros(n),
    "zeros of both signs": lambda n, t, generator: torch.where(torch.arange(n) % 3 > 0, 0.0, -0.0),
    "zeros at times": lambda n, t, generator: torch.randn(n, generator=generator) * (t % 3 == 0),
    "subnormal": lambda n, t, generator: 1e-40 * torch.randn(n, generator=generator),
    "huge": lambda n, t, generator: 1e37 * torch.randn(n, generator=generator),
    "wider than float32": lambda n, t, generator: (3e38 * torch.randn(n, generator=generator)).clamp(
        -3e38, 3e38
    ),
}
SIZES = [1, 2, 3, 100, 511, 513, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 777]


def run_both(sizes: list[int], kind: Kind, steps: int, **options: Any) -> None:
    """Compares a rule stepped by the kernel with one stepped by torch, after each step."""
    fast, plain = (rule_for(sizes, **options) for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for t in range(steps):
        gradients = [kind(n, t, generator) for n in sizes]
        with steps_by(True) as seen:
            step(fast, gradients)
        assert seen == sizes
        with steps_by(False):
            step(plain, gradients)
        assert_same(fast, plain, f"step {t + 1}")


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_steps_are_bit_equal(kind):
    run_both(SIZES, KINDS[kind], STEPS)


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.3},
        {"window_correction": True},
        {"density": 1.0, "window": 3},
        {"density": 0.3, "window": 1, "betas": (0.5, 0.9)},
        {"density": 1e-6, "window": 25},
        {"bucket_size": 1},
        {"bucket_size": 2},
        {"bucket_size": 64, "eps": 0.0},
        {"bucket_size": BLOCK},
        {"lr": 0.0},
    ],
    ids=str,
)
def test_fifty_steps_are_bit_equal_with_other_options(options):
    run_both([1, 7, 513, BLOCK + 300], KINDS["normal"], STEPS, **options)


@pytest.mark.slow
@needs_numba
@pytest.mark.parametrize("bucket_size", [7, 33, 1000, 100_000])
def test_steps_are_bit_equal_if_buckets_do_not_divide_the_only_block(bucket_size):
    run_both([1, 6, 100, 999, 5001], KINDS["normal"], STEPS, bucket_size=bucket_size, density=0.1)


@needs_numba
def test_the_threshold_of_the_last_step_does_not_change_the_selection():
    n = BLOCK + 500
    gradients = [torch.randn(n, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    ends = []
    for threshold in (None, 0.0, 2.5, 100.0, math.inf, math.nan):
        for compiled in (True, False):
            rule = rule_for([n])
            (p,) = rule.trainable()
            with steps_by(compiled):
                step(rule, gradients[:1])
                if threshold is not None:
                    rule.state[p]["threshold"].fill_(threshold)
                step(rule, gradients[1:2])
                step(rule, gradients[2:])
            ends.append(rule)
    for other in ends[1:]:
        assert_same(ends[0], other)


@needs_numba
@pytest.mark.parametrize("compiled", [True, False])
def test_ties_are_resolved_in_favor_of_the_first_entries(compiled):
    rule = rule_for([BLOCK + 200], density=0.01)
    (p,) = rule.trainable()
    g = torch.where(torch.arange(BLOCK + 200) % 2 > 0, 1.0, -1.0)
    g[[5, 1000, BLOCK + 150]] = 3.0
    with steps_by(compiled):
        step(rule, [g])
    k, last = math.ceil(0.01 * BLOCK), 2
    indices = rule.state[p]["indices"].long()
    assert indices[:k].tolist() == [*range(k - 1), 1000]
    assert indices[10 * k :][:last].tolist() == [0, 150]


@needs_numba
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("count", [1, 30, 3000])
@pytest.mark.parametrize("when", [0, 4])
def test_nan_and_infinity_have_the_same_effect(bad, count, when):
    # 30 are fewer than the selected entries, 3000 are more.
    n = BLOCK + 5000
    fast, plain = rule_for([n]), rule_for([n])
    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(n, generator=generator)[:count]
    for t in range(12):
        g = torch.randn(n, generator=generator)
        if t == when:
            g[places] = bad
        with steps_by(True):
            step(fast, [g])
        with steps_by(False):
            step(plain, [g])
        assert_same(fast, plain, t)
    theta = fast.trainable()[0].detach()
    assert theta.isnan().sum() >= count if count < 3000 else theta.isnan().any()
    if count == 1:
        assert theta.isfinite().sum() == n - 1  # no other entry is affected


@needs_numba
def test_nans_of_any_bit_pattern_have_the_same_effect():
    n = 2000
    bits = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF800001], dtype=np.uint32)
    g = torch.randn(n, generator=torch.Generator().manual_seed(0))
    g[:500] = torch.from_numpy(np.resize(bits, 500).view(np.float32))
    fast, plain = rule_for([n]), rule_for([n])
    for _ in range(3):
        with steps_by(True):
            step(fast, [g])
        with steps_by(False):
            step(plain, [g])
        assert_same(fast, plain)


@needs_numba
def test_the_window_is_rounded_to_the_nearest_even_bfloat16():
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    bits[:4] = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x80000000]  # two ties, one to infinity, minus zero
    expected = torch.from_numpy(bits.view(np.float32)).to(torch.bfloat16)
    found = np.array([kernel._bfloat16(x) for x in bits.view(np.int32)], dtype=np.uint16)
    found_values = torch.from_numpy(found.view(np.int16)).view(torch.bfloat16)
    nan = expected.isnan()
    assert nan.any()
    assert torch.equal(found_values.isnan(), nan)
    assert torch.equal(found_values[~nan].view(torch.int16), expected[~nan].view(torch.int16))


@needs_numba
@pytest.mark.parametrize("stop", [1, 10, 23])
def test_a_state_continues_with_or_without_the_kernel(stop):
    sizes = [9, 1500, BLOCK + 300]
    generator = torch.Generator().manual_seed(0)
    gradients = [[torch.randn(n, generator=generator) for n in sizes] for _ in range(STEPS)]
    ends = []
    for before in (True, False):
        for after in (True, False):
            rule = rule_for(sizes)
            with steps_by(before):
                for g in gradients[:stop]:
                    step(rule, g)
            twins = [nn.Parameter(p.detach().clone()) for p in rule.trainable()]
            resumed = rules.MicroAdam(twins, lr=123.0)
            resumed.load_state_dict(copy.deepcopy(rule.state_dict()))
            with steps_by(after):
                for g in gradients[stop:]:
                    step(resumed, g)
            ends.append(resumed)
    for other in ends[1:]:
        assert_same(ends[0], other)


@needs_numba
def test_strided_parameters_and_gradients_are_stepped_in_place():
    base = torch.randn(300, 700, generator=torch.Generator().manual_seed(0))
    params = [nn.Parameter(base.clone().t()), nn.Parameter(base.t().contiguous())]
    strided = rules.MicroAdam(params[:1], lr=0.1)
    plain = rules.MicroAdam(params[1:], lr=0.1)
    assert not params[0].is_contiguous()
    generator = torch.Generator().manual_seed(1)
    for t in range(5):
        g = torch.randn(300, 700, generator=generator).t()  # not contiguous either
        with steps_by(True) as seen:
            step(strided, [g])
        assert seen == [210_000]
        with steps_by(False):
            step(plain, [g.contiguous()])
        assert torch.equal(params[0], params[1]), t
    assert params[0].stride() == (1, 700)
