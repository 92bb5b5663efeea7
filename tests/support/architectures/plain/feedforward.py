"""Linear layers, with checkpoints, several inputs per example, masks of tokens or tables."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.support.architectures.batches import present
from tests.support.architectures.plain.parts import head, plain, sequence, two_layers, vector
from tests.support.architectures.registry import register


def checkpoints(reentrant: bool, m: Any, x: Tensor) -> Tensor:
    h = m.first(x)
    h = checkpoint(lambda h: torch.tanh(m.second(torch.relu(h))), h, use_reentrant=reentrant)
    h = checkpoint(lambda h: torch.tanh(m.third(h)), h, use_reentrant=reentrant)
    return m.head(h.mean(1))


def siamese(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Concatenates two inputs along the batch."""
    h = torch.tanh(m.second(torch.relu(m.first(torch.cat([left, right])))))
    a, b = h.chunk(2)
    return m.head((a - b).abs())


def siamese_stacked(m: Any, left: Tensor, right: Tensor) -> Tensor:
    """Interleaves two inputs along the batch."""
    h = torch.tanh(m.second(torch.relu(m.first(torch.stack([left, right], 1).flatten(0, 1)))))
    return m.head((h[0::2] - h[1::2]).abs())


def many_crops(m: Any, x: Tensor) -> Tensor:
    """Repeats each example along the batch for its augmentations, and averages their logits."""
    again = x.repeat_interleave(3, 0)
    factors = torch.tensor([1.0, 0.5, -1.0], dtype=x.dtype).repeat(len(x)).view(-1, 1)
    h = torch.relu(m.first(again * factors))
    return m.head(torch.tanh(m.second(h))).view(len(x), 3, -1).mean(1)


def tiled_crops(m: Any, x: Tensor) -> Tensor:
    """Concatenates the augmented batches, and averages the logits of each example."""
    again = torch.cat([x, 0.5 * x, x.flip(1)])
    h = torch.relu(m.first(again))
    return torch.stack(m.head(torch.tanh(m.second(h))).split(len(x))).mean(0)


def three_layers() -> dict[str, Any]:
    return two_layers() | dict(third=nn.Linear(8, 8))


def masked_tokens(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Runs layers on a list of all present tokens of the batch, and adds up the results per example."""
    h = torch.tanh(m.second(torch.relu(m.first(x[mask]))))
    rows = mask.nonzero()[:, 0]
    return m.head(torch.zeros(len(x), 8, dtype=h.dtype).index_add(0, rows, h))


def scattered_tokens(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Does the same, but puts the results back at their places."""
    h = torch.tanh(m.second(torch.relu(m.first(x[mask]))))
    out = torch.zeros_like(x)
    out[mask] = h
    return m.head(out.sum(1))


def factorization(m: Any, users: Tensor, items: Tensor) -> Tensor:
    """Predicts clicks from embeddings of fields with offsets, their pairwise products, and a bag."""
    h = m.table(users.unsqueeze(1) + torch.tensor([0, 10]))
    bag = F.embedding_bag(items, m.items.weight, mode="mean")
    pairs = 0.5 * (h.sum(1).square() - h.square().sum(1))
    return m.head(torch.cat([pairs, bag], 1))


def register_feedforward() -> None:
    """Adds networks of linear layers."""
    register("checkpointing, reentrant", plain(partial(checkpoints, True), three_layers, sequence))
    register("checkpointing, not reentrant", plain(partial(checkpoints, False), three_layers, sequence))
    register("siamese, side by side", plain(siamese, two_layers, vector, vector))
    register("siamese, alternating", plain(siamese_stacked, two_layers, vector, vector))
    register("augmentations, repeated", plain(many_crops, two_layers, vector))
    register("augmentations, side by side", plain(tiled_crops, two_layers, vector))
    register("tokens by a boolean mask", plain(masked_tokens, two_layers, sequence, present))
    register("tokens by a boolean mask, put back", plain(scattered_tokens, two_layers, sequence, present))
    register(
        "click-through with offsets and a bag",
        plain(
            factorization,
            lambda: dict(table=nn.Embedding(20, 8), items=nn.Embedding(20, 8), head=head(16)),
            lambda n: torch.randint(10, (n,)),
            lambda n: torch.randint(20, (n, 4)),
        ),
    )
