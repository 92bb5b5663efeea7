"""MiniLM with a classifier: a small BERT whose last blocks are trained.

The architecture is BERT's, with normalisation after each sum: 6 blocks of width 384, with 12 heads and 1536
hidden units. Published weights are read from a folder; nothing is downloaded here.

References:
    Wenhui Wang, Furu Wei, Li Dong, Hangbo Bao, Nan Yang, Ming Zhou. "MiniLM: Deep Self-Attention Distillation
    for Task-Agnostic Compression of Pre-Trained Transformers." NeurIPS 2020. arXiv:2002.10957.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from adamas import _validate
from adamas.models import _shapes
from adamas.models.bert import BertBottom, BertSizes, BertTop
from adamas.models.staged import Staged

_INITIALIZATIONS = {"pretrained": 0.02, "bert": 0.02, "normal": 1.0}

# Our names of layers -> their names in published files.
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


def minilm(
    weights: str | Path | None,
    classes: int = 2,
    *,
    blocks_trained: int = 1,
    initialization: str = "pretrained",
    sizes: BertSizes | None = None,
) -> Staged:
    """Builds a text classifier on top of MiniLM, or of another BERT in the same format.

    It takes tokens `(n, T)`, with 0 as padding. `model.frozen` holds the embeddings and the first blocks and
    returns `(hidden, present)`; `model.trained` holds the other blocks and the classifier, takes these two,
    and can be trained on them alone (`Staged`). The classifier sees the mean vector of all tokens except
    padding, as in MiniLM's own training, instead of BERT's pooler. There is no dropout.

    Adapters: `peft.get_peft_model(model.trained, LoraConfig(target_modules=["query", "value"],
    modules_to_save=["classifier"]))` adds low-rank adapters to the trained blocks, for which the fast engine
    has its usual formulas.

    Args:
        weights: Folder with `config.json` and the weights as a safetensors file, such as the one that
            `adamas.data.minilm_files()` returns. None draws all weights as with "bert".
        classes: Number of classes.
        blocks_trained: Number of last blocks to train besides the classifier; 0 trains the classifier alone.
        initialization: Where training starts. "pretrained": the published blocks, as in the DP-AdamW paper,
            and a classifier drawn as with "bert". "bert": N(0, 0.02^2) for the weights of the trained blocks
            and the classifier, biases 0, normalisation 1. "normal": the same with N(0, 1), as in the
            DP-AdamBC paper's code.
        sizes: Sizes of a model without published weights.

    Raises:
        FileNotFoundError: If the folder lacks these files.
        ValueError: If the files describe another architecture.

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
    """Builds `minilm` for texts of one length: 20.8 million frozen parameters and 1,775,234 trained ones.

    Args:
        input_shape: `(tokens,)`, the length of a text with its padding; 512 at most.
        classes: Number of classes.
        weights: See `minilm`.
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
    """Reads sizes and weights from a folder."""
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
    """Loads published weights into the named layers of a module."""
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
