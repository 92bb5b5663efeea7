"""Layers and inputs that several families share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.architectures.batches import labels, plain_classified
from tests.support.architectures.registry import CLASSES, Built, T
from tests.support.through import Through


def plain(
    forward: Callable[..., Tensor], parts: Callable[[], dict[str, Any]], *inputs: Callable[[int], Tensor]
) -> Callable[[int], Built]:
    """Makes a classifier from a function of its parts and inputs."""

    def build(n: int) -> Built:
        return Through(forward, **parts()), plain_classified, (*(x(n) for x in inputs), labels(n))

    return build


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.3 * torch.randn(shape))


def sequence(n: int) -> Tensor:
    return torch.randn(n, T, 8)


def head(width: int = 8) -> nn.Linear:
    return nn.Linear(width, CLASSES)


def masked_mean(h: Tensor, mask: Tensor) -> Tensor:
    kept = mask.to(h.dtype).unsqueeze(2)
    return (h * kept).sum(1) / kept.sum(1)


def two_layers() -> dict[str, Any]:
    return dict(first=nn.Linear(8, 10), second=nn.Linear(10, 8), head=head())


def vector(n: int) -> Tensor:
    return torch.randn(n, 8)


def square() -> nn.Linear:
    return nn.Linear(8, 8)
