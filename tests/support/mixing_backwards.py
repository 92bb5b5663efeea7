"""Adds losses to `ATTACKS` whose backward mixes their examples, by custom functions or hooks."""

import torch
from torch import nn

from tests.support.mixing_losses import ATTACKS, attack


@attack
def saved_hooks(model, x, y):
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t.flip(0) if t.shape[:1] == (3,) else t
    ):
        h = model(x)
        return (h * h).sum(1)


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


class Exponential(torch.autograd.Function):
    """Saves its output, and multiplies by its mean in the backward."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y.mean()


@attack
def custom_saved_out(model, x, y):
    return Exponential.apply(model(x)).sum(1)


def doubling(name, backward, keep=lambda ctx, x: None):
    """Adds a loss through a function that doubles its input and has the given backward."""

    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            keep(ctx, x)
            return x * 2

    Doubling.backward = staticmethod(backward)
    ATTACKS[name] = lambda model, x, y: Doubling.apply(model(x)).sum(1)


doubling("custom_attr", lambda ctx, g: g * ctx.kept.mean(), keep=lambda ctx, x: setattr(ctx, "kept", x.exp()))
doubling(
    "custom_saved_tmp",
    lambda ctx, g: g * ctx.saved_tensors[0].mean(),
    keep=lambda ctx, x: ctx.save_for_backward(x.exp()),
)
doubling("custom_flip", lambda ctx, g: g.flip(0))
doubling("custom_len", lambda ctx, g: g * len(g))
doubling("custom_shape", lambda ctx, g: g * ctx.n, keep=lambda ctx, x: setattr(ctx, "n", x.shape[0]))
