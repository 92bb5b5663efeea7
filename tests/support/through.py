"""Models written as one function."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Through(nn.Module):
    """Holds layers, parameters and other parts by name. Its forward calls `forward(model, *inputs)`."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._forward(self, *inputs)
