"""Cases of products and layers: matrix products, attention, convolutions, normalisations, recurrences."""

import torch
from torch.nn import functional as F

from tests.support.separated_calls import (
    FAMILIES,
    Arg,
    Case,
    const,
    every_layout,
    family,
    leading,
    maybe,
    no,
    unreduced,
    yes,
)

family(
    "matmul mm __matmul__",
    lambda n: [
        *(yes(lambda f, x: f(x, const(n, 2)), Arg((n,), 0, fold=fold)) for fold in ("", "inner", "outer")),
        yes(lambda f, x: f(const(2, n), x), Arg((n,), 1)),
        no(lambda f, x: f(x, const(n, 2)), Arg((n,), 1)),
        no(lambda f, x: f(const(2, n), x), Arg((n,), 0)),
        *(no(lambda f, x, y: f(x, y), Arg((n,), a), Arg((n,), b)) for a in (0, 1) for b in (0, 1)),
    ],
)
BATCHED = lambda n: [  # noqa: E731
    *(
        yes(lambda f, x, y: f(x, y), Arg((n, n), 0, fold=fold), Arg((n, n), 0, fold=fold))
        for fold in ("", "inner", "outer")
    ),
    *(
        no(lambda f, x, y: f(x, y), Arg((n, n), a), Arg((n, n), b))
        for a in range(3)
        for b in range(3)
        if (a, b) != (0, 0)
    ),
    no(lambda f, x: f(x, const(n, n, 2)), Arg((n, n), 0)),
    no(lambda f, x: f(const(n, 2, n), x), Arg((n, n), 0)),
    yes(lambda f, x: f(x, const(1, n, 2).expand(n, n, 2)), Arg((n, n), 0)),
    yes(lambda f, x: f(const(n, n, n), x), Arg((n, n), 2)),
]
family("bmm", BATCHED)
FAMILIES["matmul"] = lambda n, flat=FAMILIES["matmul"]: [
    *flat(n),
    *BATCHED(n),
    yes(lambda f, x: f(x, const(n, 2)), Arg((n, n), 0)),
    yes(lambda f, x: f(x, const(n)), Arg((n, n), 0)),
    yes(lambda f, x: f(x, const(3, n, 2)), Arg((n,), 0)),
    yes(lambda f, x, y: f(x, y), Arg((3, 2, n), 1), Arg((n, 2), 0)),
    no(lambda f, x, y: f(x, y), Arg((n, 2, n), 1), Arg((n, n, 2), 0)),
    no(lambda f, x, y: f(x, y), Arg((n,), 0), Arg((), 0)),
]
FAMILIES["__matmul__"] = FAMILIES["matmul"]
family(
    "__rmatmul__",
    lambda n: [
        Case(lambda f, x, c=c: c.call(lambda a, b: f(b, a), x), c.args, c.proven)
        for c in FAMILIES["mm"](n)
        if len(c.args) == 1
    ],
)
family(
    "mv",
    lambda n: [
        yes(lambda f, x: f(x, const(n)), Arg((n,))),
        no(lambda f, x: f(x, const(n)), Arg((n,), 1)),
        no(lambda f, x, y: f(x, y), Arg((n,)), Arg(())),
    ],
)
family(
    "addmm",
    lambda n: [
        yes(lambda f, x: f(const(n), x, const(n, n)), Arg((n,))),
        no(lambda f, x: f(const(n), const(n, n), x), Arg((n,))),
        yes(lambda f, x, y: f(x, y, const(n, n)), Arg((n,)), Arg((n,))),
        no(lambda f, x, y: f(x, y, const(n, n)), Arg((n,), 1), Arg((n,))),
        no(lambda f, x: f(x, const(n, n), const(n, n)), Arg((n,))),
        no(lambda f, x: f(const(n, 1), x, const(n, n)), Arg((n,))),
    ],
)
family(
    "addmv",
    lambda n: [
        yes(lambda f, x, y: f(x, y, const(n)), Arg(()), Arg((n,))),
        no(lambda f, x, y: f(x, y, const(n)), Arg(()), Arg((n,), 1)),
        no(lambda f, x: f(const(n), x, const(n)), Arg((n,))),
    ],
)
family(
    "baddbmm",
    lambda n: [
        yes(lambda f, x, y: f(x, y, y), Arg((n, n)), Arg((n, n))),
        no(lambda f, x, y: f(x, y, y), Arg((n, n), 1), Arg((n, n))),
        no(lambda f, x: f(const(n, n, n), x, x), Arg((n, n))),
    ],
)
family(
    "linear",
    lambda n: [
        *(yes(lambda f, x: f(x, const(2, n), const(2)), Arg((3, n), a)) for a in (0, 1)),
        no(lambda f, x: f(x, const(2, n)), Arg((n,), 1)),
        no(lambda f, x: f(const(n, n), x), Arg((n,))),
    ],
)
family(
    "bilinear",
    lambda n: [
        yes(lambda f, x, y: f(x, y, const(2, 3, n)), Arg((3,)), Arg((n,))),
        no(lambda f, x, y: f(x, y, const(2, n, n)), Arg((n,), 1), Arg((n,))),
    ],
)
family(
    "einsum",
    lambda n: [
        yes(lambda f, x, y: f("abc,acd->abd", x, y), Arg((n, n)), Arg((n, n))),
        yes(lambda f, x, y: f("...c,...c->...", x, y), Arg((n, n), 1), Arg((n, n), 1)),
        yes(lambda f, x: f("...c,cd->...d", x, const(n, 2)), Arg((n, n), 1)),
        yes(lambda f, x: f("n i, i j -> j n", x, const(n, 2)), Arg((n,))),
        no(lambda f, x: f("ii->i", x), Arg((n,))),
        no(lambda f, x, y: f("ab,bc->ac", x, y), Arg((n,)), Arg((n,))),
        no(lambda f, x, y: f("ab,bc->ac", x, y), Arg((n,)), Arg((n,), 1)),
        no(lambda f, x, y: f("ab,cb->ac", x, y), Arg((n,)), Arg((n,))),
        no(lambda f, x, y: f("...,...->...", x, y), Arg((n,)), Arg((n,), 1)),
        no(lambda f, x: f("ab->b", x), Arg((n,))),
        no(lambda f, x: f("ab,ab->ab", x, const(n, n)), Arg((n,))),
    ],
)


def _attention(mask=None, **options):
    def call(f, q, k, v):
        return f(q, k, v, attn_mask=None if mask is None else mask, **options)

    return call


family(
    "scaled_dot_product_attention",
    lambda n: [
        *(
            yes(_attention(), *[Arg((n, n, 2), a, fold=fold)] * 3)
            for a in (0, 1)
            for fold in ("", "inner", "outer")
        ),
        *(no(_attention(), *[Arg((n, n, 2), a)] * 3) for a in (2, 3)),
        yes(_attention(const(n, n)), *[Arg((2, n, 2))] * 3),
        no(_attention(const(n, 1, n, n)), *[Arg((2, n, 2))] * 3),
        yes(_attention(is_causal=True), *[Arg((2, n, 2))] * 3),
        yes(lambda f, q, m: f(q, q, q, m), Arg((2, n, 2)), Arg((1, n, n))),
        no(lambda f, q, m: f(q, q, q, m), Arg((n, n, 2)), Arg((n, n), 0)),
        no(_attention(), Arg((n, n, 2), 0), Arg((n, n, 2), 1), Arg((n, n, 2), 0)),
        yes(_attention(enable_gqa=True), Arg((4, n, 2)), Arg((2, n, 2)), Arg((2, n, 2))),
        no(_attention(enable_gqa=True), *[Arg((n, n, 2), 1)] * 3),
    ],
)
family(
    "cdist",
    lambda n: [
        yes(lambda f, x, y: f(x, y), Arg((2, n)), Arg((3, n))),
        yes(lambda f, x: f(x, const(4, n)), Arg((n,))),
        yes(lambda f, x: f(const(4, n), x), Arg((n,))),
        no(lambda f, x, y: f(x, y), Arg((n,)), Arg((n,))),
        no(lambda f, x: f(x, const(n, 2, n)), Arg((3, n))),
        no(lambda f, x: f(x, x), Arg((n,), 1)),
    ],
)
for _k in (1, 2, 3):
    family(f"conv{_k}d", leading(lambda f, x, k=_k: f(x, const(4, 2, *[2] * k), const(4)), (2, *[4] * _k)))
    family(f"conv_transpose{_k}d", leading(lambda f, x, k=_k: f(x, const(2, 3, *[2] * k)), (2, *[3] * _k)))
    family(
        f"max_pool{_k}d avg_pool{_k}d max_pool{_k}d_with_indices",
        leading(lambda f, x: f(x, 2), (2, *[4] * _k)),
    )
    family(f"lp_pool{_k}d", leading(lambda f, x: f(x, 2.0, 2), (2, *[4] * _k)))
    family(
        f"adaptive_max_pool{_k}d adaptive_avg_pool{_k}d",
        leading(lambda f, x, k=_k: f(x, [2] * k), (2, *[4] * _k)),
    )
family("unfold", leading(lambda f, x: f(x, 2, 2, 1) if f is torch.Tensor.unfold else f(x, (2, 2)), (2, 3, 3)))
family("fold", leading(lambda f, x: f(x, (3, 3), (2, 2)), (8, 4)))
family("interpolate upsample upsample_nearest", leading(lambda f, x: f(x, 4), (2, 3, 3)))
family("upsample_bilinear", leading(lambda f, x: f(x, (4, 4)), (2, 3, 3)))
family("local_response_norm", leading(lambda f, x: f(x, 2), (4, 3)))
family("pixel_shuffle", leading(lambda f, x: f(x, 2), (4, 3, 3)))
family("pixel_unshuffle", leading(lambda f, x: f(x, 2), (2, 4, 4)))
family(
    "channel_shuffle",
    lambda n: [
        *leading(lambda f, x: f(x, 2), (4, 3, 3))(n),
        no(lambda f, x: f(torch.cat([x, x], 1), 2), Arg((2, 2, 2, 2), 1)),
    ],
)
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
family(
    "grid_sample",
    lambda n: [
        yes(lambda f, x, g: f(x, g * 2 - 1, align_corners=False), Arg((2, 4, 4)), Arg((3, 3, 2))),
        no(lambda f, x: f(x, const(n, 3, 3, 2) - 1, align_corners=False), Arg((2, 4, 4))),
    ],
)
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
family(
    "cosine_similarity",
    lambda n: [
        yes(lambda f, x, y: f(x, y), Arg((n, 2)), Arg((n, 2))),
        no(lambda f, x, y: f(x, y), Arg((n,), 1), Arg((n,), 1)),
        no(lambda f, x, y: f(x, y), Arg((n,), 0), Arg((n,), 1)),
    ],
)
family(
    "pairwise_distance",
    lambda n: [
        yes(lambda f, x, y: f(x, y), Arg((n,)), Arg((n,))),
        no(lambda f, x, y: f(x, y), Arg((n,), 1), Arg((n,), 1)),
    ],
)
family("prelu", leading(lambda f, x: f(x, const(3)), (3, 2), kind="normal"))


def _rnn(f, x, h, batch_first):
    gates = {"lstm": 4, "gru": 3}.get(f.__name__, 1)
    weights = [const(gates * 2, 3), const(gates * 2, 2), const(gates * 2), const(gates * 2)]
    return f(x, (h, h) if f.__name__ == "lstm" else h, weights, True, 1, 0.0, False, False, batch_first)


family(
    "lstm gru rnn_tanh rnn_relu",
    lambda n: [
        yes(lambda f, x, h: _rnn(f, x, h, True), Arg((n, 3)), Arg((1, 2), 1)),
        yes(lambda f, x, h: _rnn(f, x, h, False), Arg((n, 3), 1), Arg((1, 2), 1)),
        yes(lambda f, x: _rnn(f, x, torch.zeros(1, n, 2, dtype=x.dtype), True), Arg((n, 3))),
        no(lambda f, x, h: _rnn(f, x, h, False), Arg((n, 3)), Arg((1, 2), 1)),
        no(lambda f, x: _rnn(f, x, const(1, n, 2), True), Arg((n, 3))),
    ],
)


def _cell(f, x, h):
    gates = {"lstm_cell": 4, "gru_cell": 3}.get(f.__name__, 1)
    return f(
        x, (h, h) if f.__name__ == "lstm_cell" else h, const(gates * 2, 3), const(gates * 2, 2), None, None
    )


family(
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    lambda n: [yes(_cell, Arg((3,)), Arg((2,))), no(lambda f, x: _cell(f, x, const(n, 2)), Arg((3,)))],
)
