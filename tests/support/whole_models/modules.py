"""Whole models written with torch alone: convolutional, recurrent and attention models.

Each factory takes a dropout probability and a kind of activation checkpointing: none, reentrant or not.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas.models import wide_resnet
from tests.support.whole_models.data import (
    CLASSES,
    PADDING,
    WORDS,
    B,
    Built,
    T,
    classification,
    labels,
    language,
    run_part,
    words,
)

# --- images ------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False) if before != after else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        y = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(h)))))
        return y + (x if self.short is None else self.short(h))


class WideResNet(nn.Module):
    """WRN-16-4 without standardised weights."""

    def __init__(self, dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        blocks, channels = [], 16
        for stage in range(3):
            for i in range(2):
                before, channels = channels, 64 << stage
                blocks.append(Block(before, channels, 2 if stage and not i else 1, dropout))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.GroupNorm(16, channels)
        self.head = nn.Linear(channels, CLASSES)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = run_part(self.reentrant, block, h)
        return self.head(F.relu(self.norm(h)).mean((2, 3)))


class Standardized(nn.Module):
    """The wide ResNet of `adamas.models`, with dropout after each block and checkpoints around both."""

    def __init__(self, depth: int, width: int, dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.net = wide_resnet((3, 8, 8), CLASSES, depth=depth, width=width)
        self.dropout = nn.Dropout(dropout)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.net.stem(x)
        for block in self.net.blocks:
            h = run_part(self.reentrant, lambda h, block=block: self.dropout(block(h)), h)
        return self.net.classifier(self.net.norm(F.relu(h)).mean((2, 3)))


def images(model: nn.Module) -> Built:
    return model, (torch.randn(B, 3, 8, 8), labels()), classification


def unstandardized(dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    return images(WideResNet(dropout, reentrant))


def standardized(depth: int, width: int, dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    return images(Standardized(depth, width, dropout, reentrant))


# --- texts -------------------------------------------------------------------------------------------


class AttentionBlock(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(h)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        p = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        h = h + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return h + self.dropout(self.narrow(F.gelu(self.wide(self.norm2(h)))))


class TiedTransformer(nn.Module):
    """A language model with learned positions, whose embedding is also its output head."""

    def __init__(self, width: int, dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(WORDS, width), nn.Embedding(3 * T, width)
        self.blocks = nn.ModuleList(AttentionBlock(width, 2, dropout) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        h = self.dropout(self.embedding(ids) + self.positions(torch.arange(ids.shape[1])))
        for block in self.blocks:
            h = run_part(self.reentrant, block, h)
        return F.linear(self.norm(h), self.embedding.weight)


def tied_transformer(length: int = T, dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    """Makes the model and texts; short texts make the head's Gram matrices smaller than its gradients."""
    return TiedTransformer(16, dropout, reentrant), (words(length),), language


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with a causal mask and a mask of the padding."""

    def __init__(self, norm_first: bool, dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16, padding_idx=PADDING)
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16))
        self.head = nn.Linear(16, WORDS)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        h = self.embedding(ids)
        if self.reentrant is None:
            h = self.encoder(h, mask=later, src_key_padding_mask=ids == PADDING)
        else:
            for layer in self.encoder.layers:
                h = run_part(self.reentrant, layer, h, later, ids == PADDING)
            h = self.encoder.norm(h)
        return self.head(h)


def encoder(norm_first: bool, dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    return Encoder(norm_first, dropout, reentrant), (words(),), language


class Recurrent(nn.Module):
    """Two bidirectional recurrent layers, the mean over the words, and a classifier."""

    def __init__(self, kind: type[nn.RNNBase], dropout: float, reentrant: bool | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 10, padding_idx=PADDING)
        self.first = kind(10, 8, batch_first=True, bidirectional=True)
        self.second = kind(16, 6, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(12, CLASSES)
        self.reentrant = reentrant

    def forward(self, ids: Tensor) -> Tensor:
        h = self.dropout(self.embedding(ids))
        # Dropout draws masks in memory order, and a recurrent module may return either order.
        h = self.dropout(run_part(self.reentrant, lambda h: self.first(h)[0], h).contiguous())
        h = run_part(self.reentrant, lambda h: self.second(h)[0], h)
        return self.head(self.dropout(h.mean(1)))


def recurrent(kind: type[nn.RNNBase], dropout: float = 0.0, reentrant: bool | None = None) -> Built:
    return Recurrent(kind, dropout, reentrant), (words(), labels()), classification
