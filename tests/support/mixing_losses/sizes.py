"""Losses that compute a size or a start from the labels of the whole batch."""

import torch
from torch.nn import functional as F

from tests.support.mixing_losses.registry import attack, factors

factors(
    one_hot_max=lambda x, y: F.one_hot(y, y.max() + 1).shape[1],
    slice_const_max=lambda x, y: torch.ones(50)[: y.max() + 1].sum(),
    arange_max=lambda x, y: torch.arange(y.max() + 1.0).sum(),
    new_zeros_max=lambda x, y: x.new_ones(y.max() + 1).sum(),
)


@attack
def slice_max(model, x, y):
    return model(x)[:, : y.max() + 1].sum(1)


@attack
def narrow_max(model, x, y):
    return model(x).narrow(1, 0, y.max() + 1).sum(1)


@attack
def narrow_start(model, x, y):
    return model(x).narrow(1, y.max(), 1).sum(1)


@attack
def expand_max(model, x, y):
    return model(x)[:, :1].expand(-1, y.max() + 1).sum(1)


@attack
def repeat_max(model, x, y):
    return model(x)[:, :1].repeat(1, y.max() + 1).sum(1)
