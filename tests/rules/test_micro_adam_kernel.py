"""MicroAdam's compiled step: the same numbers as without it, bit for bit, whatever the gradients are."""

import copy
import importlib.util
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from adamas import PrivateGradient, rules
from adamas._numerics import threads as _threads
from adamas.rules import _micro_adam_kernel as kernel
from adamas.rules import micro_adam
from adamas.rules._micro_adam_state import BLOCK

STEPS = 50

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is missing")


@contextmanager
def steps_by(compiled: bool) -> Iterator[list[int]]:
    """Steps with or without the kernel; yields the sizes of the tensors that the kernel stepped."""
    seen: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        if compiled:
            original = kernel.step

            def noted(theta: Tensor, *args: Any, **kwargs: Any) -> Any:
                seen.append(theta.numel())
                return original(theta, *args, **kwargs)

            patch.setattr(kernel, "step", noted)
        else:
            patch.setattr(micro_adam, "_kernel", lambda: None)
        yield seen


def step(rule: rules.MicroAdam, gradients: list[Tensor]) -> None:
    params = rule.trainable()
    release = {p: g.reshape(p.shape) for p, g in zip(params, gradients, strict=True)}
    PrivateGradient(release, dict.fromkeys(params, 0.1)).write_to(rule)
    rule.step()


def rule_for(sizes: list[int], seed: int = 0, **options: Any) -> rules.MicroAdam:
    generator = torch.Generator().manual_seed(seed)
    params = [nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]
    return rules.MicroAdam(params, **{"lr": 0.1, **options})


def assert_same(one: rules.MicroAdam, other: rules.MicroAdam, what: object = "") -> None:
    """Parameters and states, bit for bit; any NaN equals any other."""
    for p, twin in zip(one.trainable(), other.trainable(), strict=True):
        pairs = {name: (value, other.state[twin][name]) for name, value in one.state[p].items()}
        for name, (a, b) in {"theta": (p, twin), **pairs}.items():
            if isinstance(a, Tensor):
                assert a.dtype == b.dtype
                a, b = a.detach().double(), b.detach().double()
                assert torch.equal(a.isnan(), b.isnan()), (name, what)
                assert torch.equal(a.nan_to_num(0.0), b.nan_to_num(0.0)), (name, what)
                assert torch.equal(a.nan_to_num(0.0).signbit(), b.nan_to_num(0.0).signbit()), (name, what)
            else:
                assert a == b, (name, what)


Kind = Callable[[int, int, torch.Generator], Tensor]


def rotating(n: int, t: int, generator: torch.Generator) -> Tensor:
    """Large entries that are others at each step, so that thresholds are too high or too low."""
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


# --- the same as without --------------------------------------------------------------------------------

SIZES = [1, 2, 3, 100, 511, 513, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 777]


def run_both(sizes: list[int], kind: Kind, steps: int, **options: Any) -> None:
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
def test_buckets_that_do_not_divide_a_block_are_bit_equal_in_tensors_of_one_block(bucket_size):
    run_both([1, 6, 100, 999, 5001], KINDS["normal"], STEPS, bucket_size=bucket_size, density=0.1)


@needs_numba
def test_the_last_steps_selections_are_used_when_they_can_be_and_do_not_matter():
    # Thresholds of any size lead to the same step.
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
def test_of_equal_magnitudes_the_first_are_selected(compiled):
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


# --- numbers that are none ------------------------------------------------------------------------------


@needs_numba
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("count", [1, 30, 3000])
@pytest.mark.parametrize("when", [0, 4])
def test_nan_and_infinity_do_the_same(bad, count, when):
    # 30 are fewer than are selected, 3000 are more.
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
        assert theta.isfinite().sum() == n - 1  # nothing else is lost


@needs_numba
def test_nan_of_all_bits_are_one():
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


# --- states that move, threads and processes ------------------------------------------------------------


@needs_numba
@pytest.mark.parametrize("stop", [1, 10, 23])
def test_a_state_goes_on_with_or_without(stop):
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


def end_of(threads: int, steps: int = 12) -> rules.MicroAdam:
    torch.set_num_threads(threads)
    sizes = [4 * kernel._LEAST_SHARE * BLOCK + 123, 50]
    rule = rule_for(sizes)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        step(rule, [torch.randn(n, generator=generator) for n in sizes])
    return rule


@needs_numba
def test_threads_do_not_change_a_bit(monkeypatch):
    asked = []
    original = _threads._workers
    monkeypatch.setattr(_threads, "_workers", lambda count: asked.append(count) or original(count))
    one = end_of(1)
    assert not asked
    for threads in (2, 3, 64):
        assert_same(one, end_of(threads), threads)
    assert {count: asked.count(count) / 12 for count in asked} == {1: 1, 2: 2, 63: 3}  # as there is work for


@needs_numba
def test_a_step_ends_when_all_threads_have_ended(monkeypatch):
    expected = end_of(1, steps=1)

    class Late(ThreadPoolExecutor):
        def submit(self, function: Any, *args: Any) -> Any:
            return super().submit(lambda: (time.sleep(0.2), function(*args)))

    with Late(1) as workers:
        monkeypatch.setattr(_threads, "_workers", lambda count: workers)
        assert_same(end_of(2, steps=1), expected)


# A fresh process, in which torch has no threads yet: those would not survive a fork either.
FORK = """
import multiprocessing, torch
from adamas import rules
from adamas._numerics import threads as _threads
from adamas.rules import _micro_adam_kernel as kernel

p = torch.nn.Parameter(torch.ones(16 * 32768))
g, rule = torch.ones_like(p), rules.MicroAdam([p])

@torch.no_grad()
def step(threads):
    torch.set_num_threads(threads)
    p.grad = g
    rule._update_group([p], {p: 0.0}, rule.param_groups[0])

def child():
    step(2)
    queue.put((rule.state[p]["step"], _threads._workers.cache_info().currsize))

torch.set_num_threads(1)
step(1)
step(2)
assert _threads._workers.cache_info().currsize == 1
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, daemon=True)
process.start()
print(*queue.get(timeout=30))
"""


@pytest.mark.subprocess
@needs_numba
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_threads_of_its_own():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout.split() == ["3", "1"], done.stderr


# --- what it is for, and what is left to torch ----------------------------------------------------------


@needs_numba
def test_parameters_in_any_order_in_memory():
    base = torch.randn(300, 700, generator=torch.Generator().manual_seed(0))
    params = [nn.Parameter(base.clone().t()), nn.Parameter(base.t().contiguous())]
    strided = rules.MicroAdam(params[:1], lr=0.1)
    plain = rules.MicroAdam(params[1:], lr=0.1)
    assert not params[0].is_contiguous()
    generator = torch.Generator().manual_seed(1)
    for t in range(5):
        g = torch.randn(300, 700, generator=generator).t()  # is not contiguous either
        with steps_by(True) as seen:
            step(strided, [g])
        assert seen == [210_000]
        with steps_by(False):
            step(plain, [g.contiguous()])
        assert torch.equal(params[0], params[1]), t
    assert params[0].stride() == (1, 700)


@needs_numba
def test_threads_are_waited_for_before_a_copy_is_written_back():
    torch.set_num_threads(1)
    base = torch.randn(1000, 4000, generator=torch.Generator().manual_seed(0))
    rows, columns = nn.Parameter(base.clone()), nn.Parameter(base.t().contiguous().t())
    g = torch.randn(1000, 4000, generator=torch.Generator().manual_seed(1))
    for p in (rows, columns):
        rule = rules.MicroAdam([p], lr=0.1)
        torch.set_num_threads(1 if p is rows else 2)
        for _ in range(3):
            step(rule, [g])
    assert torch.equal(rows, columns)


@needs_numba
def test_what_another_thread_raises_is_raised():
    torch.set_num_threads(2)
    rule = rule_for([16 * BLOCK - 1000])  # an index can lie behind the last block only
    step(rule, [torch.ones(16 * BLOCK - 1000)])
    (state,) = rule.state.values()
    state["indices"][-10 * math.ceil(0.01 * (BLOCK - 1000)) :] = 32767
    with pytest.raises(RuntimeError, match="indices"):
        step(rule, [torch.ones(16 * BLOCK - 1000)])
    assert not rule._shares


@needs_numba
def test_autograd_notices_the_change_in_place():
    p = nn.Parameter(torch.ones(4))
    rule = rules.MicroAdam([p])
    loss = (p * p).sum()
    with steps_by(True) as seen:
        step(rule, [torch.ones(4)])
    assert seen
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("options", "dtype", "n"),
    [
        ({"bits": None}, torch.float32, 1000),
        ({"rounding": "stochastic"}, torch.float32, 1000),
        ({"scope": "tensor"}, torch.float32, 1000),
        ({"scope": "global"}, torch.float32, 1000),
        ({}, torch.float64, 1000),
        ({}, torch.bfloat16, 1000),
        ({"bucket_size": 1000}, torch.float32, BLOCK + 1),
    ],
    ids=str,
)
def test_all_else_is_left_to_torch(options, dtype, n):
    p = nn.Parameter(torch.ones(n, dtype=dtype))
    rule = rules.MicroAdam([p], lr=0.1, **options)
    with steps_by(True) as seen:
        step(rule, [torch.linspace(-1, 1, n).to(dtype)])
    assert not seen
    assert (p != 1).any()


@needs_numba
@pytest.mark.parametrize("index", [-1, -32768, 1000, 32767])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_damaged_state_is_refused(index, compiled):
    rule = rule_for([1000])
    with steps_by(compiled):
        step(rule, [torch.ones(1000)])
        (state,) = rule.state.values()
        state["indices"][3] = index
        with pytest.raises(RuntimeError, match=r"indices|index"):
            step(rule, [torch.ones(1000)])


@needs_numba
@pytest.mark.parametrize("n", [10, 1500, BLOCK, 3 * BLOCK])
def test_the_state_of_another_parameter_is_left_to_torch_which_looks_where_it_writes(n):
    rule, other = rule_for([1000]), rule_for([n])
    step(rule, [torch.ones(1000)])
    other.load_state_dict(rule.state_dict())
    with steps_by(True) as seen, suppress(RuntimeError):
        step(other, [torch.ones(n)])
    assert not seen


@needs_numba
def test_the_kernel_compiles():
    assert kernel.available()
    assert micro_adam._kernel() is kernel


# Each makes Numba unusable in another way.
BROKEN = {
    "missing": "sys.modules['numba'] = None",
    "broken": "sys.path.insert(0, broken)",
    "switched off": "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'",
}


@pytest.mark.subprocess
@pytest.mark.parametrize("way", BROKEN)
def test_without_numba_the_step_is_made_by_torch(way, tmp_path):
    (tmp_path / "numba.py").write_text("raise OSError('libllvmlite.so: cannot open shared object file')\n")
    code = (
        f"import sys\nbroken = {str(tmp_path)!r}\n{BROKEN[way]}\n"
        "import torch\nfrom adamas import PrivateGradient, rules\nfrom adamas.rules import micro_adam\n"
        "p = torch.nn.Parameter(torch.zeros(4))\nrule = rules.MicroAdam([p], lr=0.1, density=0.25)\n"
        "for _ in range(2):\n"
        "    PrivateGradient({p: torch.tensor([1.0, -3.0, 2.0, 0.0])}, {p: 0.0}).write_to(rule)\n"
        "    rule.step()\n"
        "print(micro_adam._kernel(), [round(x, 4) for x in p.tolist()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "None [0.0, 0.167, -0.0744, 0.0]"
    assert not done.stderr
