"""Cases of functions that make a tensor. Each is combined with data, so that the result has examples."""

import torch

from tests.support.separated_calls import Arg, family, no, yes

family(
    "zeros ones",
    lambda n: [
        yes(lambda f, x: f(x.shape[0], 3) + x, Arg((3,))),
        yes(lambda f, x: f((x.shape[0] * 2, 3)), Arg((3,))),
        no(lambda f, x: f(x.shape[0], x.shape[0]) + x, Arg((n,))),
    ],
)
family(
    "rand randn empty",
    lambda n: [
        yes(lambda f, x: f(x.shape[0], 3), Arg((3,)), values=False),
        no(lambda f, x: f(x.shape[0], x.shape[0]), Arg((3,)), values=False),
    ],
)
family(
    "full",
    lambda n: [
        yes(lambda f, x: f((x.shape[0], 3), 2.0) + x, Arg((3,))),
        no(lambda f, x: f((3,), x.shape[0]) + x, Arg((3,))),
        no(lambda f, x: f((3,), x.mean()) + x, Arg((3,), kind="unit"), gradients=False),
    ],
)
family(
    "new_zeros new_ones",
    lambda n: [
        yes(lambda f, x: f(x, x.shape[0], 3) + x, Arg((3,))),
        no(lambda f, x: f(x, (x.shape[0],) * 2) + x, Arg((n,))),
    ],
)
family("new_empty", lambda n: [yes(lambda f, x: f(x, x.shape[0], 3), Arg((3,)), values=False)])
family(
    "new_full",
    lambda n: [
        yes(lambda f, x: f(x, (x.shape[0], 3), 2.0) + x, Arg((3,))),
        no(lambda f, x: f(x, (3,), x.shape[0]) + x, Arg((3,))),
    ],
)
family(
    "arange",
    lambda n: [
        no(lambda f, x: torch.arange(x.shape[0]) + x, Arg(())),
        yes(lambda f, x: x[torch.arange(x.shape[0])], Arg((3,))),
        no(lambda f, x: torch.arange(0, x.shape[0], 2).sum() * x, Arg(())),
        no(lambda f, x: torch.arange(x.shape[0]).double().cumsum(0) * x, Arg(())),
        no(lambda f, x: f(x.ceil().sum().long()).sum() * x, Arg(()), gradients=False),
    ],
)
