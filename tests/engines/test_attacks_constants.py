"""Attacks that read a statistic of the batch, and use it as a constant for every example."""

import pickle
import queue
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.attacks import Attacks, D, assert_harmless, ce, level, outlier, through, times, zero

CASES = Attacks()
attack = CASES.add


# --- from the first call on ----------------------------------------------------------------------------


CONSTANTS: dict[str, Callable[[Tensor], Any]] = {
    "full": lambda x: torch.full((1,), level(x)),
    "full-n": lambda x: torch.full((x.shape[0], 1), level(x)),
    "full-like": lambda x: torch.full_like(x[:, :1], level(x)),
    "new-full": lambda x: x.new_full((x.shape[0], 1), level(x)),
    "pad-value": lambda x: F.pad(x, (0, 1), value=level(x))[:, -1:],
    "arange": lambda x: torch.arange(level(x).long()).sum() / 20,
    "narrow": lambda x: torch.ones(60).narrow(0, 0, level(x).long()).sum(),
    "select": lambda x: torch.arange(60.0).select(0, level(x).long()),
    "new-ones": lambda x: x.new_ones(x.shape[0], level(x).long()).sum(1, keepdim=True),
    "repeat": lambda x: torch.ones(1).repeat(level(x).long()).sum(),
    "expand": lambda x: torch.ones(1).expand(level(x).long()).sum(),
    "one-hot": lambda x: float(F.one_hot(x[:, 0].long(), level(x).long() + 1).shape[1]),
    "leaky-relu": lambda x: -F.leaky_relu(-x[:, :1], level(x)),
    "softplus": lambda x: F.softplus(x[:, :1], beta=level(x)) * 20,
    "broadcast-shapes": lambda x: 200.0 / torch.broadcast_shapes(x.shape, (1, 1))[0],
    "quantize": lambda x: torch.quantize_per_tensor(x, level(x) / 127, 0, torch.qint8).dequantize()[:, :1],
    "sparse": lambda x: x.to_sparse().to_dense().abs().max(),
    "as-tensor": lambda x: torch.as_tensor(x.tolist()).max(),
    "new-tensor": lambda x: x.new_tensor(x).max(),
    "numpy": lambda x: float(np.asarray(x).max()),
    "foreach": lambda x: torch._foreach_abs([x.detach()])[0].max(),
    "masked-mean": lambda x: x[x > 2].sum() / 4 + 1,
    "unique": lambda x: torch.unique(x.detach()).max(),
    "histogram": lambda x: torch.histc(x.detach(), 4).argmin().float() + 1,
    "swap-tensors": lambda x: swapped(x),
    "set": lambda x: torch.empty(0).set_(x).abs().max(),
    "legacy-constructor": lambda x: torch.Tensor(x).abs().max(),
    "nested": lambda x: torch.nested.nested_tensor([x]).to_padded_tensor(0.0).max(),
    "slice": lambda x: torch.ones(60)[: level(x).long()].sum(),
    "parameter": lambda x: nn.Parameter(x, requires_grad=False).abs().max(),
    "dlpack": lambda x: torch.from_dlpack(torch.to_dlpack(x)).abs().max(),
}


def swapped(x: Tensor) -> Tensor:
    a, b = torch.zeros(x.shape[0], x.shape[1]), x.clone()
    torch.utils.swap_tensors(a, b)
    return a.max()


for _name, _number in CONSTANTS.items():
    attack(f"constant-{_name}", zero, times(_number), outlier())


def _in_a_thread(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, x).result()


attack("constant-in-a-thread", through(lambda m, x: m.layer(x) * _in_a_thread(level, x)), ce(0.01), outlier())


# --- from a later call on, when the engine only follows Python functions ------------------------------


def _largest(x: Tensor) -> Tensor:
    return x.abs().max()


def _as_number(x: Tensor) -> float:
    return float(x.abs().max())


def _scripted(function: Callable[[Tensor], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(function)


def _without_modes(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.abs().max()


POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()


def _in_a_running_thread(x: Tensor) -> Tensor:
    """Puts work into the queue of a running thread, past `submit`."""
    answer: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
    POOL._work_queue.put(_Item(lambda: answer.put(level(x))))
    return answer.get()


@dataclass
class _Item:
    """Work in the queue of a thread pool."""

    run: Callable[[], None]


def _caught(x: Tensor) -> Any:
    """Catches a refusal and repeats the call."""
    largest = torch.Tensor(x)
    for _ in range(3):
        try:
            return largest.abs().max()
        except Exception:
            continue
    return 1.0


def _in_a_process(x: Tensor) -> Any:
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(_as_number, x).result()


LATER: dict[str, Callable[[Tensor], Any]] = {
    "torchscript": lambda x: _scripted(_largest)(x.detach()),
    "set-on-data": lambda x: torch.zeros_like(x).set_(x.roll(1, 0)).sum(1, keepdim=True).abs(),
    "traced": lambda x: torch.jit.trace(_largest, torch.zeros(3, D))(x.detach()),
    "script-number": lambda x: _scripted(_as_number)(x.detach()),
    "subclass": lambda x: x.as_subclass(nn.Parameter).detach().abs().max(),
    "make-subclass": lambda x: Tensor._make_subclass(Tensor, x).abs().max(),
    "without-modes": lambda x: _without_modes(x),
    "operator": lambda x: torch.ops.aten.amax.default(x.detach(), [0, 1]),
    "thread": lambda x: _in_a_thread(level, x),
    "thread-number": lambda x: _in_a_thread(_as_number, x),
    "running-thread": lambda x: _in_a_running_thread(x),
    "numpy-dlpack": lambda x: float(np.from_dlpack(x).max()),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)).max(),
    "caught": lambda x: _caught(x),
    "process": lambda x: _in_a_process(x),
    "compiled": lambda x: torch.compile(_largest, backend="eager")(x.detach()),
    "generator": lambda x: next(_largest(part) for part in [torch.Tensor(x)]),
    "vmap": lambda x: torch.func.vmap(_largest)(x.detach().unsqueeze(0))[0],
    "length": lambda x: float(len(torch.Tensor(x[x[:, 0] > 2].repeat(9, 1)))) + 1,
}


def later(number: Callable[[Tensor], Any]) -> Callable[[], nn.Module]:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.calls += 1
        return m.layer(x) * (number(x) if m.calls > 6 else 1.0)

    return through(forward, calls=lambda: 0)


for _name, _number in LATER.items():
    attack(f"constant-{_name}-at-once", zero, times(_number), outlier(), engines=("bookkeeping",))


AGAIN = ("legacy-constructor", "nested", "set", "dlpack", "parameter")
for _name, _number in (LATER | {name: CONSTANTS[name] for name in AGAIN}).items():
    attack(f"later-{_name}", later(_number), ce(0.01), outlier(), warm=8)


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
