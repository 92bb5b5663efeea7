"""MiniLM with a classifier: a small BERT of which the last blocks train.

The architecture is BERT's, with normalisation after each sum: 6 blocks, 384 numbers for each token, 12 heads,
1536 hidden units. Published weights are read from a folder; nothing is fetched here.

References:
    Wenhui Wang, Furu Wei, Li Dong, Hangbo Bao, Nan Yang, Ming Zhou. "MiniLM: Deep Self-Attention Distillation
    for Task-Agnostic Compression of Pre-Trained Transformers." NeurIPS 2020. arXiv:2002.10957.

    Jacob Devlin, Ming-Wei Chang, Kenton Lee, Kristina Toutanova. "BERT: Pre-training of Deep Bidirectional
    Transformers for Language Understanding." NAACL 2019. arXiv:1810.04805.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from adamas import _validate
from adamas.models import _shapes
from adamas.models.staged import Staged

PADDING = 0
"""The token that fills up short texts."""

_INITIALIZATIONS = {"pretrained": 0.02, "bert": 0.02, "normal": 1.0}

# Own names of layers, and those in published files.
_OF_EMBEDDINGS = {
    "words": "word_embeddings",
    "positions": "position_embeddings",
    "types": "token_type_embeddings",
    "norm": "LayerNorm",
}
_OF_BLOCK = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "output_norm": "output.LayerNorm",
}


@dataclass(frozen=True)
class BertSizes:
    """Sizes of a BERT; by default those of MiniLM-L6.

    Attributes:
        words: Tokens in the vocabulary.
        positions: Tokens in the longest text.
        width: Numbers for each token.
        layers: Blocks.
        heads: Heads of attention in each block.
        inner: Hidden units in each block.
        types: Types of tokens.
        epsilon: What each normalisation adds to a variance.
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
        """The sizes in a published `config.json`.

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
        """Takes `(n, T, width)` and what is added to the scores of attention, `(n, 1, 1, T)`."""

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
        """Vectors `(n, T, width)` of tokens `(n, T)`, and which tokens are no padding; all of type 0."""
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
    """The last blocks, the mean over the tokens that are no padding, and a linear classifier.

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
        """Logits of vectors `(n, T, width)` and `(n, T)`; vectors may be kept in half precision."""
        hidden = hidden.to(next(self.parameters()).dtype)
        visible = _visible(present, hidden.dtype)
        for block in self.blocks:
            hidden = block(hidden, visible)
        kept = present.to(hidden.dtype).unsqueeze(2)
        mean = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1)
        logits: Tensor = self.classifier(mean)
        return logits


def minilm(
    weights: str | Path | None,
    classes: int = 2,
    *,
    blocks_trained: int = 1,
    initialization: str = "pretrained",
    sizes: BertSizes | None = None,
) -> Staged:
    """A classifier of texts on top of MiniLM, or of another BERT in the same format.

    Takes tokens `(n, T)`, with 0 as padding. `model.frozen` holds the embeddings and the first blocks and
    gives `(hidden, present)`; `model.trained` holds the other blocks and the classifier, takes these two, and
    can be trained on them alone (`Staged`). The classifier sees the mean of the vectors of all tokens that
    are no padding, as MiniLM was trained for, instead of BERT's pooler. There is no dropout.

    Adapters: `peft.get_peft_model(model.trained, LoraConfig(target_modules=["query", "value"],
    modules_to_save=["classifier"]))` has low-rank ones in the trained blocks, for which the fast engine has
    its usual formulas.

    Args:
        weights: Folder with `config.json` and the weights as a safetensors file, such as the one that
            `adamas.data.minilm_files()` returns. None draws all weights as "bert" says.
        classes: Number of classes.
        blocks_trained: How many of the last blocks train, beside the classifier; 0 trains it alone.
        initialization: What training starts from. "pretrained": the published blocks, as in the DP-AdamW
            paper, and a classifier as "bert" draws it. "bert": N(0, 0.02^2) for the weights of the trained
            blocks and the classifier, biases 0, normalisation 1. "normal": the same with N(0, 1), as the
            DP-AdamBC paper's code does.
        sizes: Sizes of a model without published weights.

    Raises:
        FileNotFoundError: If the folder has no such files.
        ValueError: If the files are of another architecture.

    Example:
        >>> small = BertSizes(words=100, positions=16, width=8, layers=3, heads=2, inner=16)
        >>> model = minilm(None, classes=2, sizes=small)
        >>> sum(p.numel() for p in model.trained.parameters())
        618
        >>> hidden, present = model.frozen(torch.tensor([[5, 7, 9, 0], [3, 4, 0, 0]]))
        >>> model.trained(hidden, present).shape
        torch.Size([2, 2])
    """
    _validate.count(classes=classes)
    _validate.whole(blocks_trained=blocks_trained)
    _validate.one_of(_INITIALIZATIONS, initialization=initialization)
    published = None
    if weights is not None:
        if sizes is not None:
            raise ValueError("Expected weights or sizes, got both: a folder of weights has its own sizes.")
        sizes, published = _read(Path(weights))
    sizes = sizes or BertSizes()
    if blocks_trained > sizes.layers:
        raise ValueError(
            f"Expected blocks_trained={blocks_trained} to be at most {sizes.layers}, all blocks."
        )
    bottom = BertBottom(sizes, sizes.layers - blocks_trained)
    top = BertTop(sizes, blocks_trained, classes)
    if published is None:
        _draw(bottom, 0.02)
    else:
        _load(bottom, published, "embeddings", _OF_EMBEDDINGS)
        for layer, block in enumerate([*bottom.blocks, *top.blocks]):
            _load(block, published, f"encoder.layer.{layer}", _OF_BLOCK)
    kept = published is not None and initialization == "pretrained"
    _draw(top.classifier if kept else top, _INITIALIZATIONS[initialization])
    return Staged(bottom, top)


def minilm_classifier(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    weights: str | Path | None = None,
    blocks_trained: int = 1,
    initialization: str = "pretrained",
    sizes: BertSizes | None = None,
) -> Staged:
    """`minilm` for texts of one length: 20.8 million frozen parameters below 1,775,234 trained ones.

    Args:
        input_shape: `(tokens,)`, the length of a text with its padding; 512 at most.
        classes: Number of classes.
        weights: See `minilm`, as the other options.
        blocks_trained: See `minilm`.
        initialization: See `minilm`.
        sizes: See `minilm`.

    Example:
        >>> model = minilm_classifier((64,), 2)
        >>> [sum(p.numel() for p in part.parameters()) for part in (model.frozen, model.trained)]
        [20790912, 1775234]
    """
    _shapes.flat(input_shape, classes)
    model = minilm(
        weights, classes, blocks_trained=blocks_trained, initialization=initialization, sizes=sizes
    )
    assert isinstance(model.frozen, BertBottom)
    longest = model.frozen.positions.num_embeddings
    if len(input_shape) != 1 or input_shape[0] > longest:
        raise ValueError(
            f"Expected input_shape={tuple(input_shape)!r} to be (tokens,) with at most {longest} tokens: "
            "'minilm' takes texts as token ids."
        )
    return model


def _visible(present: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of attention: 0, and for padding a number that leaves it no weight.

    It is finite, so that a text of nothing but padding has finite vectors.
    """
    scores = torch.zeros(present.shape, dtype=dtype, device=present.device)
    return scores.masked_fill(~present, torch.finfo(dtype).min)[:, None, None, :]


def _draw(module: nn.Module, deviation: float) -> None:
    """Draws weights from N(0, deviation^2), with biases of 0 and plain normalisation."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=deviation)
        elif isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
        if isinstance(part, nn.Linear | nn.LayerNorm):
            assert part.bias is not None
            nn.init.zeros_(part.bias)


def _read(folder: Path) -> tuple[BertSizes, dict[str, Tensor]]:
    """The sizes and the weights in a folder."""
    config = folder / "config.json"
    files = sorted(folder.glob("*.safetensors"))
    if not config.is_file() or len(files) != 1:
        raise FileNotFoundError(
            f"Expected config.json and one safetensors file in weights={str(folder)!r}. "
            "adamas.data.minilm_files() fetches them and returns their folder."
        )
    return BertSizes.read(config), {
        name.removeprefix("bert."): tensor for name, tensor in load_file(files[0]).items()
    }


def _load(module: nn.Module, published: dict[str, Tensor], prefix: str, names: dict[str, str]) -> None:
    """Fills the named layers of a module."""
    for own, theirs in names.items():
        for kind, p in module.get_submodule(own).named_parameters():
            name = f"{prefix}.{theirs}.{kind}"
            value = published.get(name)
            if value is None or value.shape != p.shape:
                found = "none" if value is None else f"shape {tuple(value.shape)}"
                raise ValueError(
                    f"Expected {name!r} of shape {tuple(p.shape)} in the weights, found {found}: they are "
                    "not of the model that config.json describes."
                )
            with torch.no_grad():
                p.copy_(value)
