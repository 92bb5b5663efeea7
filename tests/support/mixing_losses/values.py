"""Losses in which a value of the whole batch, or of another example, reaches each example."""

import warnings

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.mixing_losses.registry import attack, factors

# A mean, passed to a function that makes a tensor.
factors(
    full_mean=lambda x, y: torch.full((1,), x.mean()),
    full_like_mean=lambda x, y: torch.full_like(x[:, 0], x.mean()),
    full_like_const=lambda x, y: torch.full_like(torch.ones(1), x.mean()),
    new_full_mean=lambda x, y: x.new_full((1,), x.mean()),
    as_tensor_list=lambda x, y: torch.as_tensor([x.mean()]),
    tensor_list=lambda x, y: torch.tensor([x.mean()]),
    as_a_parameter=lambda x, y: nn.Parameter(x.mean(), requires_grad=False),
)

# A mean or a count, by a constructor or a function that does not look like a reduction of the batch.
factors(
    tensor_ctor=lambda x, y: torch.Tensor(x).mean(),
    from_numpy=lambda x, y: torch.from_numpy(numpy.asarray(x)).mean(),
    asarray=lambda x, y: torch.asarray(x).mean(),
    ops_aten=lambda x, y: torch.ops.aten.mean(x),
    sum_of_a_mask=lambda x, y: x.ne(x).logical_not().sum(),
)

# A reduction by deprecated arguments, which override `reduction`.
factors(
    mse_size_average=lambda x, y: F.mse_loss(x, x * 2, size_average=True, reduction="none"),
    mse_size_average_pos=lambda x, y: F.mse_loss(x, x * 2, True, None, reduction="none"),
)


@attack
def pad_value(model, x, y):
    return model(F.pad(x[:, :3], (0, 1), value=x.mean())).sum(1)


@attack
def leaky_relu_slope(model, x, y):
    return F.leaky_relu(model(x), x.mean()).sum(1)


@attack
def dropout_p(model, x, y):
    return F.dropout(model(x), x.abs().mean().clamp(max=0.9), False).sum(1)


@attack
def torch_instance_norm(model, x, y):
    r = torch.zeros(4)
    h = torch.instance_norm(
        model(x)[:, :, None].expand(-1, -1, 3) + x[:, :, None] * torch.arange(3.0),
        None,
        None,
        r,
        torch.ones(4),
        True,
        0.5,
        1e-5,
        False,
    )
    return h.sum((1, 2)) * r.sum()


@attack
def alike_index_data(model, x, y):
    p = torch.arange(4.0).expand(len(x), 4)[torch.arange(len(x)), y]
    return model(x).sum(1) * p[0]


@attack
def scatter_reduce_mode(model, x, y):
    return torch.zeros(1, 4).scatter_add(0, torch.zeros(3, 4, dtype=torch.long), x).sum() * model(x).sum(1)


@attack
def grad_unused(model, x, y):
    z = x.clone().requires_grad_()
    g = torch.autograd.grad((z.sum(1) * x[:, 0].sum()).sum(), z)[0]
    return model(x).sum(1) * g.sum(1)


@attack
def grads_batched(model, x, y):
    z = x.clone().requires_grad_()
    o = (z**2).sum(1)
    (g,) = torch.autograd.grad(o, z, grad_outputs=x[:, :3] * x[:, 1:2], is_grads_batched=True)
    return model(x).sum(1) * g.sum((1, 2))


@attack
def vmapped(model, x, y):
    return torch.func.vmap(lambda a: a.sum(), in_dims=1)(model(x)).sum() * model(x).sum(1)


@attack
def vmapped_data(model, x, y):
    return torch.func.vmap(lambda a: a.mean(), in_dims=1)(x).sum() * model(x).sum(1)


@attack
def jit(model, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        centered = torch.jit.trace(lambda x: x - x.mean(), torch.zeros(3, 4))
    return model(centered(x)).sum(1)
