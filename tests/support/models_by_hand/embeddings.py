"""Embeddings of words and positions, and heads that share their weight."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.models_by_hand.parts import Build, Pool, param, tokens
from tests.support.through import Through


def positions(index: Callable[[int], Tensor], length: int) -> Build:
    return lambda: (
        Through(
            lambda m, x: m.o((m.e(x) + m.p(index(x.shape[1]))).tanh()),
            e=nn.Embedding(20, 8),
            p=nn.Embedding(12, 8),
            o=nn.Linear(8, 3),
        ),
        tokens(8, length),
    )


CASES: dict[str, Build] = {
    "embedding": lambda: (
        nn.Sequential(nn.Embedding(20, 8), Pool(), nn.Tanh(), nn.Linear(8, 3)),
        tokens(),
    ),
    "embedding, one word": lambda: (
        nn.Sequential(nn.Embedding(4, 3), nn.Tanh(), nn.Linear(3, 3)),
        torch.tensor([0, 1, 1, 3, 0]),
    ),
    "embedding padding_idx": lambda: (
        nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Tanh(), nn.Linear(8, 3)),
        tokens(),
    ),
    "embedding padding_idx from the end": lambda: (
        nn.Sequential(nn.Embedding(6, 8, padding_idx=-1), nn.Tanh(), nn.Linear(8, 3)),
        tokens(words=6),
    ),
    "embedding T = B": lambda: (
        nn.Sequential(nn.Embedding(20, 8), nn.Tanh(), nn.Linear(8, 3)),
        tokens(8, 8),
    ),
    "embedding time-first": lambda: (
        Through(
            lambda m, x: m.o(m.e(x.t()).tanh()).mean(0),
            e=nn.Embedding(20, 8, padding_idx=0),
            o=nn.Linear(8, 3),
        ),
        tokens(8, 8),
    ),
    "embedding used twice": lambda: (
        Through(lambda m, x: m.e(x).tanh().sum(1) * m.e(x[:, 2]), e=nn.Embedding(20, 8, padding_idx=0)),
        tokens(),
    ),
    "embedding_bag": lambda: (nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 3)), tokens()),
    "tied embedding and head": lambda: (
        Through(
            lambda m, x: F.linear(m.l(m.e(x)).tanh(), m.e.weight), e=nn.Embedding(20, 8), l=nn.Linear(8, 8)
        ),
        tokens(),
    ),
    # Many words and few places: the norm uses the head's Gram matrix and its product with the touched rows.
    "tied embedding and head, gram": lambda: (
        Through(
            lambda m, x: F.linear(torch.tanh(m.l(m.e(x))), m.e.weight),
            e=nn.Embedding(60, 40, padding_idx=0),
            l=nn.Linear(40, 40),
        ),
        tokens(length=6, words=60),
    ),
    "tied embedding and head, T = B, padding": lambda: (
        Through(
            lambda m, x: F.linear(m.l(m.e(x)).tanh(), m.e.weight, m.b),
            e=nn.Embedding(20, 8, padding_idx=0),
            l=nn.Linear(8, 8),
            b=param(20),
        ),
        tokens(8, 8),
    ),
    "positions (1, T)": positions(lambda t: torch.arange(t)[None], 9),
    "positions (T,)": positions(torch.arange, 9),
    "positions (1, T), T = B": positions(lambda t: torch.arange(t)[None], 8),
    "positions (T,), T = B": positions(torch.arange, 8),
}
