"""Whole models as people train them, with random weights.

`MODELS` maps a name to a factory; `made` builds a model with its batch and loss. All factories take `dropout`
and `reentrant`, the kind of activation checkpointing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.support.whole_models.data import Built, T
from tests.support.whole_models.hugging_face import adapted, bert, gpt2, gpt2_masked, minilm
from tests.support.whole_models.modules import (
    encoder,
    recurrent,
    standardized,
    tied_transformer,
    unstandardized,
)

OWN: dict[str, Callable[..., Built]] = {
    "WRN-16-4": unstandardized,
    "WRN-16-4, standardised": partial(standardized, 16, 4),
    "WRN-10-2, standardised": partial(standardized, 10, 2),
    "tied transformer": tied_transformer,
    "tied transformer, long": partial(tied_transformer, 2 * T + 2),
    "encoder, norm last": partial(encoder, False),
    "encoder, norm first": partial(encoder, True),
    "LSTM": partial(recurrent, nn.LSTM),
    "GRU": partial(recurrent, nn.GRU),
}

HUGGING_FACE: dict[str, Callable[..., Built]] = {
    "BERT, eager": bert,
    "BERT, sdpa": partial(bert, "sdpa"),
    "MiniLM": minilm,
    "GPT-2, eager": gpt2,
    "GPT-2, eager, masked": partial(gpt2, loss=gpt2_masked),
    "GPT-2, sdpa": partial(gpt2, "sdpa"),
    "BERT, LoRA": adapted(bert, target_modules=["query", "value"]),
    "BERT, DoRA": adapted(bert, target_modules=["query", "value"], use_dora=True),
    "GPT-2, LoRA": adapted(gpt2, target_modules=["c_attn"], fan_in_fan_out=True),
}

MODELS = OWN | HUGGING_FACE


def made(name: str, dtype: torch.dtype = torch.float64, **options: Any) -> Built:
    """Makes a model in training mode, a batch and a loss; no parameter is only ones or zeros."""
    torch.manual_seed(0)
    model, batch, loss = MODELS[name](**options)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.to(dtype).train(), tuple(x.to(dtype) if x.is_floating_point() else x for x in batch), loss
