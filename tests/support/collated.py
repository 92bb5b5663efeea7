"""A `collate_fn` for pairs of tensors."""

from typing import Any

import torch
from torch import Tensor


def stacked(examples: list[Any]) -> tuple[Tensor, Tensor]:
    """Stacks the inputs and the labels."""
    x, y = zip(*examples, strict=True)
    return torch.stack(x), torch.stack(y)
