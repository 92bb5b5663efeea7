"""Losses whose backward mixes their examples, by custom functions or hooks; none may be proven."""

import torch

from tests.support.mixing_losses import attack


@attack
def saved_hooks(model, x, y):
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t.flip(0) if t.shape[:1] == (3,) else t
    ):
        h = model(x)
        return (h * h).sum(1)


class Sc(torch.autograd.Function):
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
    return Sc.apply(model(x)).sum(1)


class Sc2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.y = x.exp()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y.mean()


@attack
def custom_attr(model, x, y):
    return Sc2.apply(model(x)).sum(1)


class Sc3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].mean()


@attack
def custom_saved_tmp(model, x, y):
    return Sc3.apply(model(x)).sum(1)


class Sc4(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g.flip(0)


@attack
def custom_flip(model, x, y):
    return Sc4.apply(model(x)).sum(1)


class Sc5(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * len(g)


@attack
def custom_len(model, x, y):
    return Sc5.apply(model(x)).sum(1)


class Sc6(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[0]
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.n


@attack
def custom_shape(model, x, y):
    return Sc6.apply(model(x)).sum(1)
