"""Helpers that stand-ins share."""

from typing import Any

import torch
from torch import Tensor


def apply(function: Any, *arguments: Any) -> Any:
    """Applies an autograd function, whose `apply` torch leaves without types."""
    return function.apply(*arguments)


def wide(t: Tensor) -> Tensor:
    """Returns a tensor in float32 if it has 16 bits, and as it is otherwise."""
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t


def detached(t: Tensor | None) -> Tensor | None:
    """Returns a tensor without its graph; None stays None."""
    return None if t is None else t.detach()
