"""Attacks on norms: gradients that change between norm and sum, and values that round badly."""

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from adamas import rules
from tests.support.attacks import EVERY, Attacks, D, N, assert_harmless, ce, gaussian, outlier, through, zero

CASES = Attacks()
attack = CASES.add

# --- gradients that change between norm and sum -----------------------------------------------------------


def _alternating(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return m.layer(x) * (1e-3 if m.calls % 2 else 100.0)


class Drawn(nn.Module):
    """Multiplies by a factor from a random generator that the engine does not control."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer, self.draw = zero(), draw

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 10 ** (6 * self.draw() - 3)


for _name, _model in (
    ("in-place", through(lambda m, x: m.layer(x.mul_(10.0)))),
    ("counter", through(_alternating, calls=lambda: 0)),
    ("python-random", lambda: Drawn(random.Random(6).random)),
    ("numpy-random", lambda: Drawn(np.random.default_rng(0).random)),
):
    attack(
        f"twice-{_name}",
        _model,
        ce(10.0),
        outlier(big=1.0),
        cache=0,
        sets=([0], []),
        engines=("vmap", "loop"),
    )

attack(
    "count-of-calls",
    through(_alternating, calls=lambda: 0),
    ce(10.0),
    lambda: outlier(N, big=1.0),
    who=0,
    options={"micro_batch_size": 3},
    engines=("bookkeeping", "vmap", "loop"),
)

# --- values that round badly ------------------------------------------------------------------------------


class Frames(nn.Module):
    """Applies a convolution to two frames, and subtracts the results."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return (h[:, 0] - h[:, 1]).flatten(1)


def shifted(by: float, *size: int) -> TensorDataset:
    x, y = gaussian(N, *size).tensors
    x[-1] += by
    return TensorDataset(x, y)


def some(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch[0])
    return 1e-4 * out.square().sum(1) + out[:, :8].sum(1)


attack("frames-1e+07", Frames, some, shifted(1e7, 2, 2, 6, 6))
for _by in (1e5, 1e7):
    attack(
        f"times-{_by:.0e}",
        through(lambda m, x: m.layer(x)[:, 0] - m.layer(x)[:, 1]),
        ce(),
        shifted(_by, 2, D),
    )


def subnormal(model: nn.Module, batch: Any) -> Tensor:
    return 1e-20 * model(batch[0]).sum(1)


def huge() -> TensorDataset:
    x = torch.zeros(64, 4096)
    x[-1] = 2.8e38
    return TensorDataset(x, torch.zeros(64))


attack("subnormal", lambda: zero(4096, 64), subnormal, huge, who=63)


class Almost(nn.Module):
    """A weight that equals the parameter except for one column."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, width))
        self.register_buffer("factors", torch.ones(width).index_fill_(0, torch.tensor([7]), factor))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.factors)


def one_column(width: int) -> TensorDataset:
    x = torch.zeros(N, width)
    x[-1, 7] = 100.0
    return TensorDataset(x, torch.zeros(N))


attack(
    "row-map",
    functools.partial(Almost, 100_000, 1.001),
    lambda model, batch: model(batch[0]).sum(1),
    functools.partial(one_column, 100_000),
)
for _rule in ("AdaClip", "MacAdam"):
    attack(
        f"center-{_rule}",
        lambda: nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 2)),
        ce(5.0),
        gaussian(64),
        who=63,
        rule=getattr(rules, _rule),
        warm=2,
    )
for _kind in (torch.bfloat16, torch.float16):
    attack(
        f"narrow-{_kind}",
        lambda kind=_kind: nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 2)).to(kind),
        lambda model, batch, kind=_kind: (
            100 * F.cross_entropy(model(batch[0].to(kind)).float(), batch[1], reduction="none")
        ),
        gaussian(),
    )
for _name, _value in (("nan", math.nan), ("inf", math.inf), ("largest", 3e38)):
    attack(
        f"value-{_name}", lambda: nn.Linear(D, 2), ce(), functools.partial(outlier, big=_value), engines=EVERY
    )


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
