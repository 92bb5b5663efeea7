"""Losses that confuse the axis of the examples with another, or regroup entries across it."""

import torch
from torch.nn import functional as F

from tests.support.mixing_losses.registry import attack


@attack
def channel_shuffle5(model, x, y):
    h = model(x)[None, :, :, None, None].expand(1, -1, 4, 1, 1)
    h = torch.cat([h, h], 1)
    return F.channel_shuffle(h, 2)[0, : len(x), :, 0, 0].sum(1)


@attack
def torch_embedding(model, x, y):
    return model(torch.embedding(x, torch.tensor([0, 0, 0]))).sum(1)


@attack
def einsum_rep(model, x, y):
    return torch.einsum("ii->i", model(x)[:, :3])


@attack
def bcast_n_nn(model, x, y):
    return (model(x)[:, :3] * x[:, 0]).sum(1)


@attack
def matmul_nn(model, x, y):
    return (model(x)[:, :3] @ x[:, :3]).sum(1)


@attack
def cat_regroup(model, x, y):
    h = model(x)
    return torch.cat([h, h]).view(len(x), 2, 4).sum((1, 2))


@attack
def view_regroup(model, x, y):
    return model(x).t().reshape(len(x), 4).sum(1)


@attack
def chunk_cut(model, x, y):
    h = model(x).repeat(2, 1)
    return torch.cat(h.chunk(3)[:1] + h.chunk(3)[1:2]).sum(1)[: len(x)]


@attack
def unflatten_regroup(model, x, y):
    return model(x).reshape(-1).unflatten(0, (4, 3)).sum(0)
