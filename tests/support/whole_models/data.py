"""Texts, labels and losses for whole models; each loss has one value per example."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

B, T, WORDS, CLASSES = 5, 7, 100, 3
PADDING = 0
Batch = tuple[Tensor, ...]
Loss = Callable[[Any, Batch], Tensor]
Built = tuple[nn.Module, Batch, Loss]


def labels() -> Tensor:
    return torch.randint(CLASSES, (B,))


def words(length: int = T) -> Tensor:
    """Draws texts of different lengths, padded at the end; each repeats a word."""
    ids = torch.randint(1, WORDS, (B, length))
    ids[:, 2] = ids[:, 0]
    return torch.where(present(length), ids, PADDING)


def present(length: int = T) -> Tensor:
    """Returns a mask of the words that are not padding; the first text has no padding."""
    return torch.arange(length) < length - torch.arange(B).unsqueeze(1) % 4


def classification(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def next_words(logits: Tensor, ids: Tensor) -> Tensor:
    """Averages the loss of each next word over a text, without its padding."""
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    kept = (ids[:, 1:] != PADDING).to(losses.dtype)
    return (losses * kept).sum(1) / kept.sum(1)


def language(model: nn.Module, batch: Batch) -> Tensor:
    return next_words(model(batch[0]), batch[0])


def run_part(reentrant: bool | None, part: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Runs a part of a model: in a reentrant checkpoint, in another one, or for None without."""
    return part(*inputs) if reentrant is None else checkpoint(part, *inputs, use_reentrant=reentrant)
