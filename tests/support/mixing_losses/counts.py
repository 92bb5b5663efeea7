"""Losses that depend on the number of examples."""

import math

import torch

from tests.support.mixing_losses.registry import attack, divisors, factors

# A number that Python computes from the size of the batch.
factors(
    bit_length=lambda x, y: len(x).bit_length(),
    real=lambda x, y: len(x).real,
    numerator=lambda x, y: len(x).numerator,
    ratio=lambda x, y: len(x).as_integer_ratio()[0],
    conjugate=lambda x, y: len(x).conjugate(),
    times_negative=lambda x, y: 2.0 if len(x) * -1 < -2 else 1.0,
    product_of_sizes=lambda x, y: math.prod(x.shape),
    stride_leak=lambda x, y: x.t().contiguous().t().stride(1),
)

# The size of something that has as many parts as the batch has examples.
divisors(
    mixed_shape=lambda x, y: x.cumsum(0).shape[0],
    mixed_len=lambda x, y: len(x.cumsum(0)),
    mixed_numel=lambda x, y: torch.randperm(len(x)).numel(),
    unbind_len=lambda x, y: len(x.unbind(0)),
    split_len=lambda x, y: len(x.split(1)),
    iter_len=lambda x, y: len(list(x)),
    chunk_len=lambda x, y: len(x.chunk(100)),
)

# A part of a constant; its place or length is the size of the batch.
factors(
    getitem_const_count=lambda x, y: torch.arange(100.0)[len(x)],
    getitem_const_tuple_count=lambda x, y: torch.arange(100.0)[None][0, len(x)],
    select_const_count=lambda x, y: torch.arange(100.0).select(0, len(x)),
    narrow_const_count=lambda x, y: torch.ones(100).narrow(0, 0, len(x)).sum(),
    split_const_count=lambda x, y: torch.ones(100).split(len(x))[0].sum(),
    chunk_const_count=lambda x, y: torch.ones(100).chunk(len(x))[0].sum(),
    view_const_count=lambda x, y: torch.ones(12).view(len(x), -1)[0].sum(),
    alike_slice_sum=lambda x, y: torch.ones(len(x))[1:].sum(),
)


@attack
def mask_and_count_slice(model, x, y):
    s = model(x)
    k = x[:, 0] > -100
    return torch.zeros_like(s[:, 0]).index_add(0, k.nonzero()[:, 0], s[k, : len(x)].sum(1))


@attack
def inplace_count_alias(model, x, y):
    z = x.clone()
    v = z.view(len(x), 4)
    z.div_(len(x))
    return model(v).sum(1)


@attack
def inplace_count_const(model, x, y):
    c = torch.zeros(1)
    d = c.view(1)
    c.fill_(len(x))
    return model(x).sum(1) * d


@attack
def inplace_count_module(model, x, y):
    torch.Tensor.add_(model.buf, len(x))
    return model(x).sum(1)


@attack
def setitem_const_count_slice(model, x, y):
    z = torch.zeros(100)
    z[: len(x)] = 1
    return model(x).sum(1) * z.sum()
