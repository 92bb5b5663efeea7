"""Batches, layers and parameters that several families share, and how a case is built."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.support.one_by_one import Batch

Build = Callable[[], tuple[nn.Module, Tensor]]

B = 5  # examples; no probe has this size, and no layer this width


class Pool(nn.Module):
    """Averages over the axis after that of the examples."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def made(build: Build, seed: int = 0) -> tuple[nn.Module, Batch]:
    """Builds a model and a batch in float64. No parameter stays all ones or all zeros."""
    torch.manual_seed(seed)
    model, x = build()
    model = model.double()
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model, (x, 0.5 + torch.rand(len(x), dtype=torch.float64))


def tokens(n: int = B, length: int = 9, words: int = 20) -> Tensor:
    """Draws texts with repeated words and with the word 0, which is the padding."""
    x = torch.randint(words, (n, length))
    x[:, 3], x[:, 5] = x[:, 1], 0
    return x


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Builds two linear layers with a tanh between them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 4)).to(dtype)


def rows(n: int, *size: int, seed: int = 1) -> Batch:
    """Draws a batch for `mlp`."""
    torch.manual_seed(seed)
    return torch.randn(n, *(size or (7,)), dtype=torch.float64), 0.5 + torch.rand(n, dtype=torch.float64)
