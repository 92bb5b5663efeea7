"""Losses that pass values on by writing into a tensor, or by keeping one."""

import torch

from tests.support.mixing_losses.registry import attack


@attack
def inplace_weird_alias(model, x, y):
    z = torch.zeros(len(x), 4)
    v = z.t()
    z.add_(x)
    return model(v.t()).sum(1) * v.sum()


@attack
def inplace_view_of_made(model, x, y):
    z = torch.zeros(len(x), 4)
    v = z[0]
    z.add_(x)
    return model(x).sum(1) * v.sum()


@attack
def inplace_through_view(model, x, y):
    z = torch.zeros(len(x), 4)
    z.view(-1).add_(x.view(-1))
    return model(x).sum(1) * z.sum()


@attack
def data_write(model, x, y):
    z = torch.zeros(len(x), 4)
    z.data.add_(x)
    return model(x).sum(1) * z[0].sum()


@attack
def detached_write(model, x, y):
    z = torch.zeros(1, 4)
    z.detach().add_(x[:1].sum())
    return model(x).sum(1) * z.sum()


@attack
def out_write(model, x, y):
    z = torch.zeros(())
    torch.mean(x, (0, 1), out=z)
    return model(x).sum(1) * z


@attack
def set_data(model, x, y):
    c = torch.zeros(4)
    c.data = x[0]
    return model(x).sum(1) * c.sum()


@attack
def numpy_write(model, x, y):
    c = torch.zeros(4)
    c.numpy()[:] = 1
    return model(x).sum(1) * x.numpy().mean()


@attack
def kept_from_the_step_before(model, x, y):
    before = getattr(model, "before", None)
    model.before = x.mean(1)
    return model(x).sum(1) * (1.0 if before is None else before)
