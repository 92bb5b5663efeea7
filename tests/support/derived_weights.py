"""Shared by tests: helpers of `derived_weights`."""

import torch
from torch import Tensor


def axes(w: Tensor) -> tuple[int, ...]:
    return tuple(range(1, w.dim()))


def over_root(w: Tensor) -> Tensor:
    var, mean = torch.var_mean(w, dim=axes(w), keepdim=True, unbiased=False)
    return (w - mean) * torch.rsqrt(var + 1e-5)
