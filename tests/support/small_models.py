"""The smallest form of each model in `adamas.models`, with inputs and a loss."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import adamas
from adamas import rules
from adamas.engines import trainable_parameters
from adamas.models import MODELS, BertSizes

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers

N, CLASSES, TOKENS = 4, 3, 7
SMALL = BertSizes(words=50, positions=16, width=24, layers=3, heads=4, inner=40)

# The shape of an example, and the options of the model.
TINY: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "mlp": ((1, 4, 4), {"hidden": 9}),
    "linear": ((1, 4, 4), {}),
    "tanh-cnn": ((1, 14, 14), {}),
    "cnn": ((3, 8, 8), {}),
    "cnn5": ((3, 10, 10), {}),
    "wrn-16-4": ((3, 8, 8), {}),
    "resnet8-gn": ((3, 8, 8), {}),
    "resnet18-gn": ((3, 8, 8), {}),
    "scattering": ((3, 8, 8), {"scales": 1, "angles": 4, "groups": 5}),
    "minilm": ((TOKENS,), {"sizes": SMALL}),
}

every_model = pytest.mark.parametrize("name", MODELS)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def texts(n: int = N, length: int = TOKENS, words: int = SMALL.words) -> Tensor:
    """Draws texts of different lengths, with padding at the end. The first has none."""
    ids = torch.randint(1, words, (n, length))
    return torch.where(torch.arange(length) < length - torch.arange(n).unsqueeze(1) % 4, ids, 0)


def tiny(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Makes a model and a batch. No parameter stays all ones or all zeros."""
    shape, options = TINY[name]
    model = MODELS[name](shape, CLASSES, **options)
    with torch.no_grad():
        for p in trainable_parameters(model).values():
            p += 0.05 * torch.randn_like(p)
    x = texts() if name == "minilm" else torch.randn(N, *shape, dtype=dtype)
    return model.to(dtype), (x, torch.randint(CLASSES, (N,)))


def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(model(*batch[:-1]), batch[-1], reduction="none")


def make_private(model: nn.Module, *tensors: Tensor) -> adamas.PrivateRun:
    return adamas.make_private(
        model,
        rules.SGD(model.parameters(), lr=0.1),
        TensorDataset(*tensors),
        loss,
        batch_size=2,
        steps=1,
        noise_multiplier=1.0,
        delta=1e-3,
        seed=0,
    )
