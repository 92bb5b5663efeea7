"""Cases of normalisations, and of `prelu`, which also has a weight per channel."""

import torch
from torch.nn import functional as F

from tests.support.separated_calls import Arg, Case, const, family, leading, no

family("local_response_norm", leading(lambda f, x: f(x, 2), (4, 3)))
family("group_norm", leading(lambda f, x: f(x, 2, const(4), const(4)), (4, 3)))
family(
    "instance_norm",
    leading(
        lambda f, x: (
            f(x, None, None, None, None, True, 0.1, 1e-5, False) if f is torch.instance_norm else f(x)
        ),
        (4, 3),
    ),
)
family(
    "batch_norm",
    lambda n: [
        *(
            Case(
                lambda f, x: (
                    f(x, const(3), const(3), None, None, False, 0.1, 1e-5)
                    if f is F.batch_norm
                    else f(x, None, None, const(3), const(3), False, 0.1, 1e-5, False)
                ),
                (Arg(s, a),),
                p,
            )
            for s, a, p in (((3, 2), 0, None), ((n, 3), 2, None))
        ),
        no(
            lambda f, x: (
                f(x, const(n), const(n), None, None, True)
                if f is F.batch_norm
                else f(x, None, None, None, None, True, 0.1, 1e-5, False)
            ),
            Arg((n,)),
        ),
    ],
)
family("prelu", leading(lambda f, x: f(x, const(3)), (3, 2), kind="normal"))
