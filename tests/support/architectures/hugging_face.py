"""Builders of small Hugging Face models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.architectures.batches import (
    classified,
    decoded,
    labels,
    same_words,
    text,
    translated,
    words,
)
from tests.support.architectures.registry import CLASSES, END, PADDING, WIDTH, WORDS, Built, Loss, T

# Options that many configurations share: of layers, of text models, and of models with encoder and decoder.
LAYERS: dict[str, Any] = dict(
    hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
)
SMALL: dict[str, Any] = LAYERS | dict(
    vocab_size=WORDS,
    max_position_embeddings=32,
    num_labels=CLASSES,
    pad_token_id=PADDING,
    bos_token_id=END,
    eos_token_id=END,
)
ENCODER_DECODER: dict[str, Any] = dict(
    vocab_size=WORDS,
    d_model=WIDTH,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=24,
    decoder_ffn_dim=24,
    pad_token_id=PADDING,
    eos_token_id=END,
)


def made(model: str, config: str, attention: str | None = None, **options: Any) -> Any:
    """Makes a model of `transformers` without dropout."""
    transformers = pytest.importorskip("transformers")
    if attention is not None:
        options["attn_implementation"] = attention
    settings = getattr(transformers, config)(**options)
    for part in (settings, *(v for v in vars(settings).values() if hasattr(v, "to_dict"))):
        for key, value in list(vars(part).items()):
            if "drop" in key and isinstance(value, float):
                setattr(part, key, 0.0)
    return getattr(transformers, model)(settings)


def texts(
    model: str, config: str, *, loss: Loss = classified, length: int = T, extra: Any = None, **options: Any
) -> Callable[[int], Built]:
    """Makes a model of padded texts. Targets are classes, or words if the loss needs them."""

    def build(n: int) -> Built:
        batch = text(n, length)
        if loss is classified:
            batch["targets"] = labels(n)
        elif loss is same_words:
            batch["targets"] = words(n, length)
        if extra is not None:
            batch |= extra(n)
        return made(model, config, **(SMALL | options)), loss, batch

    return build


def translation(model: str, config: str, length: int = T, **options: Any) -> Callable[[int], Built]:
    """Makes an encoder and a decoder of texts."""

    def build(n: int) -> Built:
        return made(model, config, **options), translated, text(n, length) | decoded(n, T - 1)

    return build


def images(
    model: str,
    config: str,
    *,
    loss: Loss = classified,
    size: int = 8,
    frames: int | None = None,
    **options: Any,
) -> Callable[[int], Built]:
    """Makes a model of images, or of videos if `frames` is given."""

    def build(n: int) -> Built:
        shape = (n, 3, size, size) if frames is None else (n, frames, 3, size, size)
        batch = {"pixel_values": torch.randn(shape)}
        if loss is classified:
            batch["targets"] = labels(n)
        return made(model, config, **({"num_labels": CLASSES} | options)), loss, batch

    return build
