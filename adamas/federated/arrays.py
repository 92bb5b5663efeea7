"""Tensors by name, and the arithmetic that servers and clients do with them."""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from adamas._numerics.sums import accumulation_dtype

Arrays: TypeAlias = dict[str, Tensor]
"""Tensors by name, usually one per trainable parameter."""

Records: TypeAlias = dict[str, Arrays]
"""Arrays by role: "parameters", "increment", "control", ..."""


def copied(arrays: Arrays) -> Arrays:
    """Copies tensors, outside of any graph."""
    return {name: value.detach().clone() for name, value in arrays.items()}


def zeros_like(arrays: Arrays) -> Arrays:
    """Makes zeros of the same shapes and types."""
    return {name: torch.zeros_like(value) for name, value in arrays.items()}


def moments_like(arrays: Arrays) -> Arrays:
    """Makes zeros of the same shapes, in the type in which rules keep moments."""
    return {
        name: torch.zeros_like(value, dtype=accumulation_dtype(value.dtype)) for name, value in arrays.items()
    }


def sums(left: Arrays, right: Arrays) -> Arrays:
    """Computes `left + right`, tensor by tensor."""
    return {name: value + right[name] for name, value in left.items()}


def differences(left: Arrays, right: Arrays) -> Arrays:
    """Computes `left - right`, tensor by tensor, outside of any graph."""
    return {name: (value.detach() - right[name]) for name, value in left.items()}


def divided_sum(parts: Sequence[Arrays], divisor: float) -> Arrays:
    """Adds up `parts` in float64, in their order, and divides by `divisor`."""
    return {
        name: (torch.stack([part[name].double() for part in parts]).sum(0) / divisor).to(value.dtype)
        for name, value in parts[0].items()
    }
