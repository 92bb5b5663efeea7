"""Attention layers and transformers."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.support.models_by_hand.parts import B, Build, Pool, param
from tests.support.through import Through


def attention(length: int, batch_first: bool) -> Build:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        h = m.a(x, x, x, need_weights=False)[0]
        return m.o(h.mean(1 if batch_first else 0))

    return lambda: (
        Through(forward, a=nn.MultiheadAttention(8, 2, batch_first=batch_first), o=nn.Linear(8, 3)),
        torch.randn(B, length, 8),
    )


def encoder_layer(training: bool, norm_first: bool) -> Build:
    return lambda: (
        nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first),
            Pool(),
            nn.Linear(8, 3),
        ).train(training),
        torch.randn(B, 4, 8),
    )


def vit() -> tuple[nn.Module, Tensor]:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.l(x)
        h = torch.cat([m.cls.expand(h.shape[0], -1, -1), h], 1) + m.pos
        return m.o(m.m(h).tanh()[:, 0])

    parts = {"l": nn.Linear(7, 9), "m": nn.Linear(9, 9), "o": nn.Linear(9, 3)}
    return Through(forward, **parts, cls=param(1, 1, 9), pos=param(1, 5, 9)), torch.randn(B, 4, 7)


CASES: dict[str, Build] = {
    "attention batch-first": attention(4, True),
    "attention seq-first": attention(4, False),
    "attention batch-first, T = B": attention(B, True),
    "attention seq-first, T = B": attention(B, False),
    "attention batch-first, T = 3": attention(3, True),
    "attention seq-first, T = 3": attention(3, False),
    "attention seq-first, T = 6": attention(6, False),
    "attention with weights, keys of another width": lambda: (
        Through(
            lambda m, x: m.a(x, x[..., :5], x[..., 3:])[0],
            a=nn.MultiheadAttention(8, 2, kdim=5, vdim=5, batch_first=True),
        ),
        torch.randn(B, 4, 8),
    ),
    "attention with learned queries": lambda: (
        Through(
            lambda m, x: m.a(m.q.expand(len(x), -1, -1), x, x, need_weights=False)[0],
            a=nn.MultiheadAttention(8, 2, batch_first=True),
            q=param(2, 8),
        ),
        torch.randn(B, 4, 8),
    ),
    "encoder of two layers, seq-first, T = B": lambda: (
        Through(
            lambda m, x: m.e(x.transpose(0, 1)).mean(0),
            e=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, enable_nested_tensor=False
            ),
        ),
        torch.randn(B, B, 8),
    ),
    "ViT": vit,
    **{
        f"encoder layer, training={training}, norm_first={norm_first}": encoder_layer(training, norm_first)
        for training in (True, False)
        for norm_first in (True, False)
    },
}
