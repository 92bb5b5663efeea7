"""Losses that mix their examples, each in a way of its own; none may be proven."""

import math
import warnings

import numpy
import torch
from torch import nn
from torch.nn import functional as F

ATTACKS = {}


def attack(loss):
    ATTACKS[loss.__name__] = loss
    return loss


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
def copy_const(model, x, y):
    z = x.clone()
    z.copy_(torch.arange(12.0).view(3, 4))
    return model(z).sum(1)


@attack
def full_mean(model, x, y):
    return model(x).sum(1) * torch.full((1,), x.mean())


@attack
def full_like_mean(model, x, y):
    return model(x).sum(1) * torch.full_like(x[:, 0], x.mean())


@attack
def full_like_const(model, x, y):
    return model(x).sum(1) * torch.full_like(torch.ones(1), x.mean())


@attack
def new_full_mean(model, x, y):
    return model(x).sum(1) * x.new_full((1,), x.mean())


@attack
def as_tensor_list(model, x, y):
    return model(x).sum(1) * torch.as_tensor([x.mean()])


@attack
def tensor_list(model, x, y):
    return model(x).sum(1) * torch.tensor([x.mean()])


@attack
def pad_value(model, x, y):
    return model(F.pad(x[:, :3], (0, 1), value=x.mean())).sum(1)


@attack
def one_hot_max(model, x, y):
    return model(x).sum(1) * F.one_hot(y, y.max() + 1).shape[1]


@attack
def slice_max(model, x, y):
    return model(x)[:, : y.max() + 1].sum(1)


@attack
def slice_const_max(model, x, y):
    return model(x).sum(1) * torch.ones(50)[: y.max() + 1].sum()


@attack
def narrow_max(model, x, y):
    return model(x).narrow(1, 0, y.max() + 1).sum(1)


@attack
def narrow_start(model, x, y):
    return model(x).narrow(1, y.max(), 1).sum(1)


@attack
def arange_max(model, x, y):
    return model(x).sum(1) * torch.arange(y.max() + 1.0).sum()


@attack
def new_zeros_max(model, x, y):
    return model(x).sum(1) * x.new_ones(y.max() + 1).sum()


@attack
def expand_max(model, x, y):
    return model(x)[:, :1].expand(-1, y.max() + 1).sum(1)


@attack
def repeat_max(model, x, y):
    return model(x)[:, :1].repeat(1, y.max() + 1).sum(1)


@attack
def grads_batched(model, x, y):
    z = x.clone().requires_grad_()
    o = (z**2).sum(1)
    (g,) = torch.autograd.grad(o, z, grad_outputs=x[:, :3] * x[:, 1:2], is_grads_batched=True)
    return model(x).sum(1) * g.sum((1, 2))


@attack
def addmm_const(model, x, y):
    return model(torch.addmm(x, torch.arange(9.0).view(3, 3), torch.randn(3, 4))).sum(1)


@attack
def channel_shuffle5(model, x, y):
    h = model(x)[None, :, :, None, None].expand(1, -1, 4, 1, 1)
    h = torch.cat([h, h], 1)
    return F.channel_shuffle(h, 2)[0, : len(x), :, 0, 0].sum(1)


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
def torch_embedding(model, x, y):
    return model(torch.embedding(x, torch.tensor([0, 0, 0]))).sum(1)


@attack
def mse_size_average(model, x, y):
    return model(x).sum(1) * F.mse_loss(x, x * 2, size_average=True, reduction="none")


@attack
def mse_size_average_pos(model, x, y):
    return model(x).sum(1) * F.mse_loss(x, x * 2, True, None, reduction="none")


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


@attack
def getitem_const_count(model, x, y):
    return model(x).sum(1) * torch.arange(100.0)[len(x)]


@attack
def getitem_const_tuple_count(model, x, y):
    return model(x).sum(1) * torch.arange(100.0)[None][0, len(x)]


@attack
def select_const_count(model, x, y):
    return model(x).sum(1) * torch.arange(100.0).select(0, len(x))


@attack
def narrow_const_count(model, x, y):
    return model(x).sum(1) * torch.ones(100).narrow(0, 0, len(x)).sum()


@attack
def split_const_count(model, x, y):
    return model(x).sum(1) * torch.ones(100).split(len(x))[0].sum()


@attack
def chunk_const_count(model, x, y):
    return model(x).sum(1) * torch.ones(100).chunk(len(x))[0].sum()


@attack
def view_const_count(model, x, y):
    return model(x).sum(1) * torch.ones(12).view(len(x), -1)[0].sum()


@attack
def alike_slice_sum(model, x, y):
    return model(x).sum(1) * torch.ones(len(x))[1:].sum()


@attack
def alike_index_data(model, x, y):
    p = torch.arange(4.0).expand(len(x), 4)[torch.arange(len(x)), y]
    return model(x).sum(1) * p[0]


@attack
def mixed_shape(model, x, y):
    return model(x).sum(1) / x.cumsum(0).shape[0]


@attack
def mixed_len(model, x, y):
    return model(x).sum(1) / len(x.cumsum(0))


@attack
def mixed_numel(model, x, y):
    return model(x).sum(1) / torch.randperm(len(x)).numel()


@attack
def unbind_len(model, x, y):
    return model(x).sum(1) / len(x.unbind(0))


@attack
def split_len(model, x, y):
    return model(x).sum(1) / len(x.split(1))


@attack
def iter_len(model, x, y):
    return model(x).sum(1) / len(list(x))


@attack
def chunk_len(model, x, y):
    return model(x).sum(1) / len(x.chunk(100))


@attack
def stride_leak(model, x, y):
    return model(x).sum(1) * x.t().contiguous().t().stride(1)


@attack
def msort(model, x, y):
    return torch.msort(model(x)).sum(1)


@attack
def tensor_ctor(model, x, y):
    return model(x).sum(1) * torch.Tensor(x).mean()


@attack
def from_numpy(model, x, y):
    return model(x).sum(1) * torch.from_numpy(numpy.asarray(x)).mean()


@attack
def asarray(model, x, y):
    return model(x).sum(1) * torch.asarray(x).mean()


@attack
def bit_length(model, x, y):
    return model(x).sum(1) * len(x).bit_length()


@attack
def real(model, x, y):
    return model(x).sum(1) * len(x).real


@attack
def numerator(model, x, y):
    return model(x).sum(1) * len(x).numerator


@attack
def ratio(model, x, y):
    return model(x).sum(1) * len(x).as_integer_ratio()[0]


@attack
def conjugate(model, x, y):
    return model(x).sum(1) * len(x).conjugate()


@attack
def times_negative(model, x, y):
    return model(x).sum(1) * (2.0 if len(x) * -1 < -2 else 1.0)


@attack
def bool_index(model, x, y):
    return model(x)[True][0].sum(1)


@attack
def gelu_float_arg(model, x, y):
    return F.leaky_relu(model(x), x.mean()).sum(1)


@attack
def dropout_p(model, x, y):
    return F.dropout(model(x), x.abs().mean().clamp(max=0.9), False).sum(1)


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


@attack
def ops_aten(model, x, y):
    return model(x).sum(1) * torch.ops.aten.mean(x)


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
def where_n(model, x, y):
    return model(x).sum(1) * x.ne(x).logical_not().sum()


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
def scatter_reduce_mode(model, x, y):
    return torch.zeros(1, 4).scatter_add(0, torch.zeros(3, 4, dtype=torch.long), x).sum() * model(x).sum(1)


@attack
def module_bwd_hook(model, x, y):
    tanh = nn.Tanh()
    tanh.register_full_backward_hook(lambda mod, gi, go: (gi[0].flip(0),))
    return tanh(model(x)).sum(1)


@attack
def multi_grad_hook(model, x, y):
    h = model(x)
    torch.autograd.graph.register_multi_grad_hook([h], lambda g: None)
    return h.sum(1)


@attack
def unflatten_regroup(model, x, y):
    return model(x).reshape(-1).unflatten(0, (4, 3)).sum(0)


@attack
def take(model, x, y):
    return model(x.take(torch.tensor([[0, 1, 2, 3]] * 3))).sum(1)


@attack
def grad_unused(model, x, y):
    z = x.clone().requires_grad_()
    g = torch.autograd.grad((z.sum(1) * x[:, 0].sum()).sum(), z)[0]
    return model(x).sum(1) * g.sum(1)


@attack
def setattr_shape_math(model, x, y):
    return model(x).sum(1) * math.prod(x.shape)


@attack
def inverse_of_another_order(model, x, y):
    s, i = model(x).sum(1), x[:, 0].argsort()
    k = i[x[:, 1][i].argsort()]
    return s[i][k.argsort()]


@attack
def kept_from_the_step_before(model, x, y):
    before = getattr(model, "before", None)
    model.before = x.mean(1)
    return model(x).sum(1) * (1.0 if before is None else before)


@attack
def as_a_parameter(model, x, y):
    return model(x).sum(1) * nn.Parameter(x.mean(), requires_grad=False)
