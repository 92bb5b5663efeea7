"""Cases of attention and recurrent layers."""

import torch

from tests.support.separated_calls import Arg, const, family, no, yes


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
