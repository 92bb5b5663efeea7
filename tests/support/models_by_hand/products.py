"""Matrix products without a layer."""

import torch
from torch import nn

from tests.support.models_by_hand.parts import B, Build, param
from tests.support.through import Through

CASES: dict[str, Build] = {
    "matmul": lambda: (
        Through(lambda m, x: (x @ m.w).tanh() @ m.v, w=param(7, 9), v=param(9, 4)),
        torch.randn(B, 4, 7),
    ),
    "matmul with a transposed weight": lambda: (
        Through(lambda m, x: (x @ m.w.t()).tanh(), w=param(9, 7)),
        torch.randn(B, 7),
    ),
    "matmul from the left, and with a vector": lambda: (
        Through(lambda m, x: (m.w @ x).tanh() @ m.v, w=param(3, 4), v=param(7)),
        torch.randn(B, 4, 7),
    ),
    "matmul by keyword": lambda: (
        Through(lambda m, x: torch.matmul(x, other=m.w).tanh(), w=param(7, 4)),
        torch.randn(B, 7),
    ),
    "addmm, flattened": lambda: (
        Through(
            lambda m, x: torch.addmm(m.b, x.reshape(-1, 7), m.w).view(len(x), -1, 9).tanh(),
            b=param(9),
            w=param(7, 9),
        ),
        torch.randn(B, 4, 7),
    ),
    "addmm with a bias that broadcasts": lambda: (
        Through(lambda m, x: torch.addmm(m.b, x, m.w).tanh(), b=param(1), w=param(7, 9)),
        torch.randn(B, 7),
    ),
    "addmm with a bias of two axes": lambda: (
        Through(lambda m, x: torch.addmm(m.b, x, m.w).tanh(), b=param(1, 9), w=param(7, 9)),
        torch.randn(B, 7),
    ),
    "einsum": lambda: (
        Through(lambda m, x: torch.einsum("btp,pq->btq", x, m.w).tanh(), w=param(7, 4)),
        torch.randn(B, 3, 7),
    ),
    "einsum, weight first": lambda: (
        Through(lambda m, x: torch.einsum("pq,btp->bqt", m.w, x).tanh(), w=param(7, 4)),
        torch.randn(B, B, 7),
    ),
    "bilinear": lambda: (
        Through(lambda m, x: m.o(x, x.tanh()), o=nn.Bilinear(7, 7, 4)),
        torch.randn(B, 7),
    ),
}
