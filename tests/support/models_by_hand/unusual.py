"""Parameters in unusual places: checkpointed blocks, hypernetworks, penalties, constants."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from tests.support.models_by_hand.parts import B, Build, param
from tests.support.through import Through


def checkpointed(reentrant: bool, middle: Callable[[], nn.Module] | None = None) -> tuple[nn.Module, Tensor]:
    block = nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 9))
    model = Through(
        lambda m, x: m.o(checkpoint(m.m, m.i(x).tanh(), use_reentrant=reentrant)),
        i=nn.Linear(7, 9),
        m=block if middle is None else middle(),
        o=nn.Linear(9, 3),
    )
    return model, torch.randn(B, 7)


def expanded_over_places() -> tuple[nn.Module, Tensor]:
    model = Through(lambda m, x: m.l((x + m.p.expand(3, 7)).tanh()), l=nn.Linear(7, 4), p=param(1, 7))
    return model, torch.randn(B, 3, 7)


def constant_after_data() -> tuple[nn.Module, Tensor]:
    constant = torch.randn(4, 7, dtype=torch.float64)

    def forward(m: Any, x: Tensor) -> Tensor:
        h = constant + x
        return m.l((h + constant * m.p).tanh())

    return Through(forward, l=nn.Linear(7, 3), p=param(7)), torch.randn(B, 4, 7)


CASES: dict[str, Build] = {
    "checkpoint": lambda: checkpointed(False),
    "checkpoint around weight_norm": lambda: checkpointed(False, lambda: weight_norm(nn.Linear(9, 9))),
    "hypernetwork": lambda: (
        Through(
            lambda m, x: m.o(torch.bmm(m.h(x).view(-1, 9, 7), x[:, :, None])[:, :, 0].tanh()),
            h=nn.Linear(7, 63),
            o=nn.Linear(9, 3),
        ),
        torch.randn(B, 7),
    ),
    "weight decay in the loss": lambda: (
        Through(
            lambda m, x: m.o(m.h(x).tanh()) + m.h.weight.square().sum(), h=nn.Linear(7, 9), o=nn.Linear(9, 3)
        ),
        torch.randn(B, 7),
    ),
    "a parameter expanded over three places, as many as the probe has examples": expanded_over_places,
    "a constant that met data before it meets a parameter": constant_after_data,
}
