"""Normalisation layers, each next to other layers."""

from collections.abc import Callable

import torch
from torch import nn

from tests.support.models_by_hand.parts import B, Build
from tests.support.through import Through


def normed(layer: Callable[[], nn.Module], *size: int, axis: int = 0) -> Build:
    """Puts a normalisation between linear layers. With `axis=1` its examples are on axis 1."""
    return lambda: (
        Through(
            lambda m, x: m.o(m.norm(m.l(x).transpose(0, axis)).transpose(0, axis).tanh()),
            l=nn.Linear(7, 9),
            norm=layer(),
            o=nn.Linear(9, 3),
        ),
        torch.randn(B, *size, 7),
    )


CASES: dict[str, Build] = {
    "layer_norm": normed(lambda: nn.LayerNorm(9)),
    "layer_norm without bias": normed(lambda: nn.LayerNorm(9, bias=False), 4),
    "layer_norm T": normed(lambda: nn.LayerNorm(9), 11),
    "layer_norm T = B": normed(lambda: nn.LayerNorm(9), B),
    "layer_norm over T": normed(lambda: nn.LayerNorm((4, 9)), 4),
    "layer_norm time-first": normed(lambda: nn.LayerNorm(9), 4, axis=1),
    "layer_norm time-first, T = B": normed(lambda: nn.LayerNorm(9), B, axis=1),
    "layer_norm time-first, T = 3": normed(lambda: nn.LayerNorm(9), 3, axis=1),
    "rms_norm": normed(lambda: nn.RMSNorm(9)),
    "rms_norm T": normed(lambda: nn.RMSNorm(9), 11),
    "rms_norm over T": normed(lambda: nn.RMSNorm((4, 9)), 4),
    "group_norm": normed(lambda: nn.GroupNorm(3, 9)),
    "group_norm T": normed(lambda: nn.GroupNorm(2, 4), 4),
    "instance_norm": normed(lambda: nn.InstanceNorm1d(4, affine=True), 4),
    "group_norm 2d": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.GroupNorm(3, 6), nn.Tanh()),
        torch.randn(B, 4, 6, 6),
    ),
    "instance_norm 2d": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.InstanceNorm2d(6, affine=True), nn.Tanh()),
        torch.randn(B, 4, 6, 6),
    ),
    "batch_norm with fixed statistics": lambda: (
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.Tanh()).eval(),
        torch.randn(B, 4, 6, 6),
    ),
}
