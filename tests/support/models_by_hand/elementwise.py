"""Elementwise operations between a parameter and data."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.models_by_hand.parts import B, Build, param
from tests.support.through import Through


def bare(forward: Callable[..., Tensor], *size: int, **params: nn.Parameter) -> Build:
    """Makes two linear layers `l` and `o`, and parameters outside any layer."""
    return lambda: (
        Through(forward, l=nn.Linear(7, 9), o=nn.Linear(9, 3), **copy.deepcopy(params)),
        torch.randn(B, *size, 7),
    )


def in_place(operation: Callable[..., Any]) -> Build:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.l(x)
        h = operation(h, m.g)
        return m.o(h.tanh())

    return bare(forward, g=param(9))


def iadd(h: Tensor, g: Tensor) -> Tensor:
    h += g
    return h


CASES: dict[str, Build] = {
    "prelu": lambda: (nn.Sequential(nn.Linear(7, 9), nn.PReLU(), nn.Linear(9, 3)), torch.randn(B, 7)),
    "prelu by channel": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.Conv2d(4, 2, 2)),
        torch.randn(B, 3, 5, 5),
    ),
    "prelu by keyword": lambda: (
        Through(lambda m, x: F.prelu(m.l(x), weight=m.w), l=nn.Linear(7, 4), w=param(4)),
        torch.randn(B, 7),
    ),
    "bare mul and add": bare(lambda m, x: m.o((m.g * m.l(x) + m.b).tanh()), g=param(9), b=param(1, 9)),
    "bare on raw input": bare(lambda m, x: m.o(m.l(x * m.g).tanh()), g=param(7)),
    "bare div and sub": bare(lambda m, x: m.o((m.l(x) / m.g.exp() - m.b).tanh()), g=param(9), b=param(9)),
    "bare reversed": bare(lambda m, x: m.o((m.b - m.g / (2 + m.l(x).tanh())).tanh()), g=param(9), b=param(1)),
    "bare scalars": bare(lambda m, x: m.o(((1 - m.t) * m.l(x) / m.u.exp()).tanh()), t=param(), u=param(1)),
    "bare power": bare(lambda m, x: m.o(m.l(x).abs().add(1) ** m.g), g=param(9)),
    "bare with T": bare(lambda m, x: m.o((m.l(x) * m.g + m.b).tanh()), 4, g=param(4, 1), b=param(4, 9)),
    "bare with T = B": bare(lambda m, x: m.o((m.l(x) * m.g + m.b).tanh()), B, g=param(B, 1), b=param(B, 9)),
    "bare where": bare(lambda m, x: m.o(torch.where(m.l(x) > 0, m.l(x), m.g)), g=param(9)),
    "bare torch functions": bare(
        lambda m, x: m.o(torch.add(m.l(x), m.g, alpha=2).mul(m.b).tanh()), g=param(9), b=param(9)
    ),
    "bare prototypes": bare(lambda m, x: (m.l(x)[:, None] - m.k[None]).square().sum(2).tanh(), k=param(4, 9)),
    "weights picked by data": bare(lambda m, x: m.o(m.l(x) * m.k[(x[:, 0] > 0).long()]), k=param(2, 9)),
    "in-place +=": in_place(iadd),
    "in-place add_": in_place(lambda h, g: h.add_(g)),
    "in-place mul_": in_place(lambda h, g: h.mul_(g)),
}
