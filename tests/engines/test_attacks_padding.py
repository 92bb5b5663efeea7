"""Attacks through padding, whose length depends on the longest text of a batch."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tests.support.attacks import EVERY, Attacks, D, N, assert_harmless, ce, zero

CASES = Attacks()
attack = CASES.add


class Texts(Dataset[Any]):
    """Texts with the given lengths."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Any:
        return torch.full((self.lengths[i],), 1 + i % 3), torch.tensor(0)


def joined_texts(examples: list[Any]) -> Any:
    texts = nn.utils.rnn.pad_sequence([text for text, _ in examples], batch_first=True)
    return texts, torch.stack([label for _, label in examples])


def augmented_texts(examples: list[Any]) -> Any:
    texts, labels = joined_texts(examples)
    return texts.masked_fill((torch.rand(texts.shape) < 0.2) & (texts > 0), 4), labels


def padded_by_the_largest(examples: list[Any]) -> Any:
    """Pads on the left or on the right, depending on a value of the batch."""
    left = max(int(text.max()) for text, _ in examples) > 2
    side = "left" if left else "right"
    texts = nn.utils.rnn.pad_sequence([t for t, _ in examples], batch_first=True, padding_side=side)
    return texts, torch.stack([label for _, label in examples])


class First(nn.Module):
    """Uses the first token, or in very long batches the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, D, padding_idx=0), nn.Linear(D, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens)
        return self.last(h[:, 0] if tokens.shape[1] < 100 else h.mean(1))


attack(
    "padded-side",
    First,
    ce(3.0),
    Texts([5] * 2 + [9] + [5] * 9),
    who=2,
    options={"collate_fn": padded_by_the_largest},
    engines=EVERY,
)
attack(
    "padded-from-some-length-on",
    First,
    ce(0.5),
    Texts([5] * 10 + [9] + [5] * 7 + [200] + [5] * 11),
    who=18,
    options={"collate_fn": joined_texts},
    engines=EVERY,
)


class Pooled(nn.Module):
    """Uses the mean of all tokens, padding included."""

    def __init__(self, last: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(5, D, padding_idx=0), last()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.table(tokens).mean(1))


for _name, _lengths, _who, _last, _collate in (
    ("spread", [5] * (N - 1) + [200], N - 1, lambda: nn.Linear(D, 2), joined_texts),
    ("rare", [5] * 18 + [200] + [5] * 11, 18, lambda: nn.Linear(D, 2), joined_texts),
    ("zero-head", [5] * (N - 1) + [200], N - 1, zero, joined_texts),
    ("augmented", [5] * (N - 1) + [200], N - 1, lambda: nn.Linear(D, 2), augmented_texts),
):
    attack(
        f"padded-{_name}",
        functools.partial(Pooled, _last),
        ce(0.5),
        Texts(_lengths),
        who=_who,
        options={"collate_fn": _collate},
        engines=EVERY,
    )


@pytest.mark.parametrize(("case", "engine"), CASES)
def test_an_attack_is_refused_or_moves_the_sum_by_at_most_1(case, engine, monkeypatch):
    assert_harmless(case, engine, monkeypatch)
