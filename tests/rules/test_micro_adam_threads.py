"""MicroAdam's compiled step on several threads: equal bits, complete steps, errors and forks."""

import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from adamas import rules
from adamas._numerics import threads as _threads
from adamas.rules import _micro_adam_kernel as kernel
from adamas.rules._micro_adam_state import BLOCK
from tests.support.micro_adam_kernels import assert_same, needs_numba, rule_for, step


def end_of(threads: int, steps: int = 12) -> rules.MicroAdam:
    """Steps a new rule on `threads` threads."""
    torch.set_num_threads(threads)
    sizes = [4 * kernel._LEAST_SHARE * BLOCK + 123, 50]
    rule = rule_for(sizes)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        step(rule, [torch.randn(n, generator=generator) for n in sizes])
    return rule


@needs_numba
def test_the_number_of_threads_changes_no_bit(monkeypatch):
    asked = []
    original = _threads._workers
    monkeypatch.setattr(_threads, "_workers", lambda count: asked.append(count) or original(count))
    one = end_of(1)
    assert not asked
    for threads in (2, 3, 64):
        assert_same(one, end_of(threads), threads)
    # Other threads get at most three shares in each of 12 steps: there is no more work.
    assert {count: asked.count(count) / 12 for count in asked} == {1: 1, 2: 2, 63: 3}


@needs_numba
def test_a_step_waits_for_all_threads(monkeypatch):
    expected = end_of(1, steps=1)

    class Late(ThreadPoolExecutor):
        def submit(self, function: Any, *args: Any) -> Any:
            return super().submit(lambda: (time.sleep(0.2), function(*args)))

    with Late(1) as workers:
        monkeypatch.setattr(_threads, "_workers", lambda count: workers)
        assert_same(end_of(2, steps=1), expected)


# Runs in a new process, where torch has no threads yet: they would not survive a fork either.
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
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_starts_threads_of_its_own():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout.split() == ["3", "1"], done.stderr


@needs_numba
def test_a_strided_parameter_is_written_back_after_all_threads():
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
def test_an_error_in_another_thread_is_raised():
    torch.set_num_threads(2)
    rule = rule_for([16 * BLOCK - 1000])  # only in a short last block can an index be too large
    step(rule, [torch.ones(16 * BLOCK - 1000)])
    (state,) = rule.state.values()
    state["indices"][-10 * math.ceil(0.01 * (BLOCK - 1000)) :] = 32767
    with pytest.raises(RuntimeError, match="indices"):
        step(rule, [torch.ones(16 * BLOCK - 1000)])
    assert not rule._shares
