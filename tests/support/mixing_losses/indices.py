"""Losses that sort, select or add up examples by the values of the batch."""

import torch

from tests.support.mixing_losses.registry import attack


@attack
def scatter_repeated(model, x, y):
    s = model(x).sum(1)
    i = x[:, 0].argsort()
    src = torch.arange(len(x)).repeat_interleave(2)
    inv = torch.zeros_like(i).scatter(0, i, src)
    return s[i][inv]


@attack
def scatter_permuted(model, x, y):
    s = model(x).sum(1)
    i = x[:, 0].argsort()
    p = x[:, 1].argsort()
    src = torch.arange(len(x))[p]
    inv = torch.zeros_like(i).scatter(0, i, src)
    return s[i][inv]


@attack
def scatter_reduce_inv(model, x, y):
    s = model(x).sum(1)
    i = x[:, 0].argsort()
    inv = torch.ones_like(i).scatter_add(0, i, torch.arange(len(x))) % 3
    return s[i][inv]


@attack
def inverse_of_another_order(model, x, y):
    s, i = model(x).sum(1), x[:, 0].argsort()
    k = i[x[:, 1][i].argsort()]
    return s[i][k.argsort()]


@attack
def msort(model, x, y):
    return torch.msort(model(x)).sum(1)


@attack
def rank_value(model, x, y):
    return model(x).sum(1) * x[:, 0].argsort().argsort()


@attack
def sort_not_undone(model, x, y):
    return model(x).sum(1) * x[:, 0].sort()[0]


@attack
def other_mask(model, x, y):
    return model(x)[x[:, 0] > x[:, 0].median()].sum(1).sum() * x[:, 0]


@attack
def two_masks(model, x, y):
    a = x[:, 0] >= x[:, 0].max()
    b = x[:, 1] >= x[:, 1].max()
    return torch.zeros(len(x)).index_add(0, a.nonzero()[:, 0], model(x).sum(1)[a] * x[:, 2][b])


@attack
def index_add_other(model, x, y):
    s = model(x).sum(1)
    return torch.zeros_like(s).index_add(0, (y * 0), s)


@attack
def index_other(model, x, y):
    return model(x)[y % 3].sum(1)


@attack
def range_index(model, x, y):
    return model(x).sum(1) * torch.stack([x[i].sum() for i in range(len(x))]).cumsum(0)


@attack
def bool_index(model, x, y):
    return model(x)[True][0].sum(1)
