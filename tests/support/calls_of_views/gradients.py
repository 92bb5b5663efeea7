"""Cases of `torch.autograd.grad`."""

import torch

from tests.support.separated_calls import Arg, const, family, no, yes

family(
    "grad",
    lambda n: [
        yes(lambda f, x: f((x**3).sum(), x)[0], Arg((n,))),
        yes(lambda f, x: f(x**3, x, torch.ones_like(x))[0], Arg((n,))),
        no(lambda f, x: f((x**3).mean(), x)[0], Arg((n,))),
        no(lambda f, x: f((x * x.sum()).sum(), x)[0], Arg((n,))),
        no(lambda f, x: f(x**3, x, const(n, n))[0], Arg((n,))),
    ],
)
