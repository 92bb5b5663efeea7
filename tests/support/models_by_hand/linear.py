"""Linear layers: with and without axes of time, used once and twice."""

import torch
from torch import Tensor, nn

from tests.support.models_by_hand.parts import B, Build
from tests.support.through import Through


def two_layers(*shape: int, d: int = 7, k: int = 9) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(d, k), nn.Tanh(), nn.Linear(k, 4)), torch.randn(*shape, d)


CASES: dict[str, Build] = {
    "mlp": lambda: two_layers(B),
    "linear without bias": lambda: (nn.Linear(4, 3, bias=False), torch.randn(B, 4)),
    "linear T chunks": lambda: two_layers(B, 11),
    "linear T gram": lambda: two_layers(B, 3, d=40, k=50),
    "linear T gram in halves": lambda: two_layers(B, 64, d=150, k=160),
    "linear T = B": lambda: two_layers(B, B),
    "linear T = 3, the size of the probe": lambda: two_layers(B, 3),
    "linear T = 1": lambda: two_layers(B, 1),
    "linear two axes of time": lambda: two_layers(B, 2, 3),
    "used twice": lambda: (
        Through(lambda m, x: m.o(m.l(m.l(x).tanh())), l=nn.Linear(8, 8), o=nn.Linear(8, 4)),
        torch.randn(B, 8),
    ),
    "used twice with T": lambda: (
        Through(lambda m, x: m.o(m.l(m.l(x).tanh()).mean(1)), l=nn.Linear(8, 8), o=nn.Linear(8, 4)),
        torch.randn(B, 4, 8),
    ),
    "used twice, T chunks and no T": lambda: (
        Through(lambda m, x: m.o(m.l(m.l(x).tanh().mean(1))), l=nn.Linear(8, 8), o=nn.Linear(8, 4)),
        torch.randn(B, 11, 8),
    ),
    "used twice, T gram and no T": lambda: (
        Through(lambda m, x: m.o(m.l(m.l(x).tanh().mean(1))), l=nn.Linear(40, 40), o=nn.Linear(40, 4)),
        torch.randn(B, 3, 40),
    ),
    "time-first linear, T = B": lambda: (
        Through(
            lambda m, x: m.o(m.l(x.transpose(0, 1)).tanh()).mean(0), l=nn.Linear(7, 9), o=nn.Linear(9, 4)
        ),
        torch.randn(B, B, 7),
    ),
    "flattened time-first linear": lambda: (
        Through(
            lambda m, x: m.l(x.transpose(0, 1).reshape(-1, 7)).tanh().view(4, -1, 3).transpose(0, 1),
            l=nn.Linear(7, 3),
        ),
        torch.randn(B, 4, 7),
    ),
}
