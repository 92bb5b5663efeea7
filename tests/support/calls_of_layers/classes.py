"""Cases of functions of integers: embeddings, one-hot vectors and losses of classifiers."""

import torch
from torch.nn import functional as F

from tests.support.separated_calls import Arg, Case, const, every_layout, family, maybe, no, unreduced, yes

family(
    "embedding",
    lambda n: [
        *(
            yes(lambda f, i: f(const(5, n), i) if f is torch.embedding else f(i, const(5, n)), arg)
            for arg in every_layout(n, kind="int")
        ),
        no(
            lambda f, x: f(x, torch.tensor([0] * n)) if f is torch.embedding else f(torch.tensor([0] * n), x),
            Arg((n,)),
        ),
    ],
)
family(
    "embedding_bag",
    lambda n: [
        Case(
            lambda f, i: f(i, const(5, 3)) if f is F.embedding_bag else f(const(5, 3), i, torch.arange(n)),
            (Arg((n,), 0, "int"),),
            None,
        ),
        maybe(
            lambda f, i: (
                f(i, const(5, 3)) if f is F.embedding_bag else f(const(5, 3), i.flatten(), torch.arange(n))
            ),
            Arg((n,), 1, "int"),
        ),
    ],
)
family(
    "one_hot",
    lambda n: [
        *(yes(lambda f, i: f(i, 5), arg) for arg in every_layout(n, kind="int")),
        no(lambda f, i: f(i), Arg((), 0, "int")),
        no(lambda f, i: f(i, i.max() + 1), Arg((), 0, "int")),
    ],
)
family(
    "cross_entropy nll_loss",
    lambda n: [
        yes(unreduced, Arg((5,)), Arg((), 0, "int")),
        yes(unreduced, Arg((5, n)), Arg((n,), 0, "int")),
        yes(unreduced, Arg((n, 5), 2), Arg((n,), 1, "int")),
        no(unreduced, Arg((5, n)), Arg((n,), 1, "int")),
        no(unreduced, Arg((n, 5), 2), Arg((n,), 0, "int")),
        no(lambda f, x: unreduced(f, x, torch.arange(n)), Arg((5,))),
        maybe(unreduced, Arg((n,)), Arg((n,))),
        maybe(unreduced, Arg((n,)), Arg((n,), 1)),
        no(lambda f, x, y: f(x, y), Arg((5,)), Arg((), 0, "int")),
    ],
)
family(
    "ctc_loss",
    lambda n: [
        yes(
            lambda f, x, t: f(x.log_softmax(-1), t + 1, (6,) * n, (2,) * n, reduction="none"),
            Arg((6, 5), 1),
            Arg((2,), 0, "int"),
        ),
        no(
            lambda f, x, t: f(x.log_softmax(-1), t + 1, range(5, 5 + n), (2,) * n, reduction="none"),
            Arg((9, 5), 1),
            Arg((2,), 0, "int"),
        ),
    ],
)
