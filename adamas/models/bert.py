"""BERT in two parts, a frozen bottom and a trained top, with normalisation after each sum.

References:
    Jacob Devlin, Ming-Wei Chang, Kenton Lee, Kristina Toutanova. "BERT: Pre-training of Deep Bidirectional
    Transformers for Language Understanding." NAACL 2019. arXiv:1810.04805.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import _validate

PADDING = 0
"""The token that pads short texts."""


@dataclass(frozen=True)
class BertSizes:
    """Sizes of a BERT; by default those of MiniLM-L6.

    Attributes:
        words: Tokens in the vocabulary.
        positions: Tokens in the longest text.
        width: Length of the vector of a token.
        layers: Number of blocks.
        heads: Attention heads in each block.
        inner: Hidden units in each block.
        types: Number of token types.
        epsilon: Added to the variance in each normalisation.
    """

    words: int = 30522
    positions: int = 512
    width: int = 384
    layers: int = 6
    heads: int = 12
    inner: int = 1536
    types: int = 2
    epsilon: float = 1e-12

    def __post_init__(self) -> None:
        _validate.count(
            words=self.words,
            positions=self.positions,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            inner=self.inner,
            types=self.types,
        )
        _validate.positive(epsilon=self.epsilon)
        if self.width % self.heads:
            raise ValueError(f"Expected heads={self.heads} to divide width={self.width}.")

    @classmethod
    def read(cls, path: Path) -> "BertSizes":
        """Reads the sizes from a published `config.json`.

        Raises:
            ValueError: If it describes another architecture.
        """
        config = json.loads(path.read_text(encoding="utf-8"))
        fixed = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
        for key, value in fixed.items():
            if config.get(key, value) != value:
                raise ValueError(f"Expected {key}={value!r} in {path.name}, found {config[key]!r}.")
        return cls(
            words=config["vocab_size"],
            positions=config["max_position_embeddings"],
            width=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            inner=config["intermediate_size"],
            types=config["type_vocab_size"],
            epsilon=config["layer_norm_eps"],
        )


class BertBlock(nn.Module):
    """Attention and a hidden layer, each added to its input and normalised; no dropout.

    Args:
        sizes: Sizes of the model.
    """

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, sizes.epsilon)
        self.up, self.down = nn.Linear(width, sizes.inner), nn.Linear(sizes.inner, width)
        self.output_norm = nn.LayerNorm(width, sizes.epsilon)

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        """Takes vectors `(n, T, width)` and the mask added to the attention scores, `(n, 1, 1, T)`."""

        def by_head(x: Tensor) -> Tensor:
            return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

        query, key, value = (by_head(part(hidden)) for part in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        hidden = self.attention_norm(self.output(mixed.transpose(1, 2).flatten(2)) + hidden)
        result: Tensor = self.output_norm(self.down(F.gelu(self.up(hidden))) + hidden)
        return result


class BertBottom(nn.Module):
    """The embeddings and the first blocks: from tokens to vectors.

    Args:
        sizes: Sizes of the model.
        blocks: Number of blocks.
    """

    def __init__(self, sizes: BertSizes, blocks: int) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.positions = nn.Embedding(sizes.positions, sizes.width)
        self.types = nn.Embedding(sizes.types, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, sizes.epsilon)
        self.blocks = nn.ModuleList(BertBlock(sizes) for _ in range(blocks))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns vectors `(n, T, width)` of tokens `(n, T)` of type 0, and which tokens are not padding."""
        if ids.dim() != 2 or ids.shape[1] > self.positions.num_embeddings:
            raise ValueError(
                f"Expected tokens of shape (texts, at most {self.positions.num_embeddings}), got "
                f"{tuple(ids.shape)}. Cut longer texts."
            )
        present = ids != PADDING
        hidden = self.words(ids) + self.types.weight[0] + self.positions.weight[: ids.shape[1]]
        hidden = self.norm(hidden)
        for block in self.blocks:
            hidden = block(hidden, _visible(present, hidden.dtype))
        return hidden, present


class BertTop(nn.Module):
    """The last blocks, the mean over all tokens except padding, and a linear classifier.

    Args:
        sizes: Sizes of the model.
        blocks: Number of blocks.
        classes: Number of classes.
    """

    def __init__(self, sizes: BertSizes, blocks: int, classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BertBlock(sizes) for _ in range(blocks))
        self.classifier = nn.Linear(sizes.width, classes)

    def forward(self, hidden: Tensor, present: Tensor) -> Tensor:
        """Returns the logits for vectors `(n, T, width)`, possibly in half precision, and `(n, T)`."""
        hidden = hidden.to(next(self.parameters()).dtype)
        visible = _visible(present, hidden.dtype)
        for block in self.blocks:
            hidden = block(hidden, visible)
        kept = present.to(hidden.dtype).unsqueeze(2)
        mean = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1)
        logits: Tensor = self.classifier(mean)
        return logits


def _visible(present: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the attention mask: 0, and for padding a number so low that its weight is 0.

    It is finite, so that a text of padding alone has finite vectors.
    """
    scores = torch.zeros(present.shape, dtype=dtype, device=present.device)
    return scores.masked_fill(~present, torch.finfo(dtype).min)[:, None, None, :]
