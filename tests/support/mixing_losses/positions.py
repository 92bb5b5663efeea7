"""Losses that depend on an example's position in the batch."""

import torch
from torch.nn import functional as F

from tests.support.mixing_losses.registry import attack


@attack
def alike_spread(model, x, y):
    n = len(x)
    return model(x).sum(1) * (torch.arange(3.0).expand(n, 3) + torch.arange(3.0)[:, None].expand(3, n)).sum(1)


@attack
def mask_of_numbers(model, x, y):
    s = model(x).sum(1)
    k = torch.arange(len(x)) < 1
    return torch.zeros_like(s).index_add(0, k.nonzero().squeeze(1), s[k])


@attack
def where_numbers(model, x, y):
    return torch.where(torch.arange(len(x)) < 1, model(x).sum(1), 0.0)


@attack
def embedding_numbers(model, x, y):
    return model(F.embedding(torch.arange(len(x)), torch.randn(50, 4))).sum(1) + model(x).sum(1)


@attack
def linear_numbers(model, x, y):
    return model(torch.arange(len(x)).float()[:, None].expand(-1, 4)).sum(1)


@attack
def weight_times_numbers(model, x, y):
    return model(x).sum(1) + torch.arange(len(x)) * model.bias[0]


@attack
def copy_const(model, x, y):
    z = x.clone()
    z.copy_(torch.arange(12.0).view(3, 4))
    return model(z).sum(1)


@attack
def addmm_const(model, x, y):
    return model(torch.addmm(x, torch.arange(9.0).view(3, 3), torch.randn(3, 4))).sum(1)


@attack
def ctc_lengths(model, x, y):
    return F.ctc_loss(
        model(x)[None].expand(5, -1, -1).log_softmax(-1),
        torch.ones(3, 2, dtype=torch.long),
        (5, 4, 3),
        (1, 2, 1),
        reduction="none",
    )


@attack
def setitem_alike(model, x, y):
    z = torch.zeros(len(x))
    z[0] = 1
    return model(x).sum(1) * z


@attack
def setitem_alike_slice(model, x, y):
    z = torch.zeros(len(x))
    z[1:] = 1
    return model(x).sum(1) * z


@attack
def setitem_alike_const(model, x, y):
    z = torch.zeros(len(x))
    z[0] = torch.tensor(1.0)
    return model(x).sum(1) * z


@attack
def take(model, x, y):
    return model(x.take(torch.tensor([[0, 1, 2, 3]] * 3))).sum(1)
