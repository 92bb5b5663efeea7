"""The architectures by name, and how one is built."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the first import of transformers

N, T, WORDS, CLASSES, WIDTH = 5, 6, 60, 3, 16
PADDING, END = 0, 1
TOLERANCE = 1e-9

Batch = Any  # tensors by name, or in a tuple
Loss = Callable[[Any, Batch], Tensor]
Built = tuple[nn.Module, Loss, Batch]


@dataclass(frozen=True)
class Architecture:
    """A model to test the engine on.

    Attributes:
        factory: Makes model, loss and batch for a number of examples.
        expected: "fast", or the reason why the fast engine may refuse it.
        tolerance: Allowed relative error. It is larger for models that compute in float32.
        dtype: Type of the parameters and the data.
        frozen: Whether batch normalisation uses fixed statistics.
    """

    factory: Callable[[int], Built]
    expected: str = "fast"
    tolerance: float = TOLERANCE
    dtype: torch.dtype = torch.float64
    frozen: bool = True

    def build(self, n: int = N) -> Built:
        """Builds it in training mode. No parameter stays all ones or all zeros."""
        dtype = self.dtype
        torch.manual_seed(0)
        model, loss, batch = self.factory(n)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn_like(p))
        model.to(dtype).train()
        for module in model.modules():
            if self.frozen and isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()

        def cast(x: Tensor) -> Tensor:
            return x.to(dtype) if x.is_floating_point() else x

        if isinstance(batch, dict):
            return model, loss, {key: cast(x) for key, x in batch.items()}
        return model, loss, tuple(map(cast, batch))


ARCHITECTURES: dict[str, Architecture] = {}
MIXED: dict[str, Architecture] = {}


def register(name: str, factory: Callable[[int], Built], **options: Any) -> None:
    """Adds an architecture to the registry."""
    assert name not in ARCHITECTURES, name
    ARCHITECTURES[name] = Architecture(factory, **options)
