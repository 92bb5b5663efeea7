"""Weights that are computed from parameters."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from tests.support.models_by_hand.parts import B, Build, param
from tests.support.through import Through


def standardized(w: Tensor) -> Tensor:
    axes = tuple(range(1, w.dim()))
    return (w - w.mean(axes, keepdim=True)) * torch.rsqrt(w.var(axes, keepdim=True) + 1e-4)


CASES: dict[str, Build] = {
    "weight standardisation, linear": lambda: (
        Through(
            lambda m, x: m.o(F.linear(x, standardized(m.l.weight), m.l.bias).tanh()),
            l=nn.Linear(7, 9),
            o=nn.Linear(9, 3),
        ),
        torch.randn(B, 7),
    ),
    "weight standardisation, conv": lambda: (
        Through(
            lambda m, x: F.conv2d(x, standardized(m.c.weight), m.c.bias, padding=1).tanh(),
            c=nn.Conv2d(3, 4, 3),
        ),
        torch.randn(B, 3, 5, 5),
    ),
    "weight standardisation, used twice and directly": lambda: (
        Through(
            lambda m, x: F.linear(F.linear(x, standardized(m.w)).tanh(), standardized(m.w)).tanh() @ m.w,
            w=param(6, 6),
        ),
        torch.randn(B, 4, 6),
    ),
    "weight_norm": lambda: (
        nn.Sequential(weight_norm(nn.Linear(7, 9)), nn.Tanh(), nn.Linear(9, 3)),
        torch.randn(B, 7),
    ),
    "weight_norm conv": lambda: (
        nn.Sequential(weight_norm(nn.Conv2d(3, 4, 3)), nn.Tanh()),
        torch.randn(B, 3, 5, 5),
    ),
    "orthogonal": lambda: (
        nn.Sequential(orthogonal(nn.Linear(7, 9)), nn.Tanh(), nn.Linear(9, 3)),
        torch.randn(B, 4, 7),
    ),
    "spectral_norm, eval": lambda: (
        nn.Sequential(spectral_norm(nn.Conv2d(3, 4, 3)), nn.Tanh()).eval(),
        torch.randn(B, 3, 5, 5),
    ),
}
