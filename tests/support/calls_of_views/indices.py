"""Cases of functions that take indices or masks."""

import torch

from tests.support.separated_calls import FAMILIES, Arg, Case, const, every_layout, family, maybe, no, yes

INT = {"kind": "int"}


def _set(f, x, index, value):
    x = x.clone()
    f(x, index, value)
    return x


def _written(index, value):
    return lambda f, x: _set(f, x, index, value)


family(
    "gather",
    lambda n: [
        yes(lambda f, x, i: f(x, 1, i), Arg((4,)), Arg((2,), **INT)),
        no(lambda f, x, i: f(x, 0, i * 0), Arg((n,)), Arg((n,), **INT)),
        no(lambda f, x, i: f(x, 1, i * 0), Arg((n,)), Arg((n,), 1, **INT)),
        no(lambda f, x: f(x, 1, torch.arange(n).view(n, 1)), Arg((n,))),
        yes(lambda f, x: f(x, 0, torch.zeros(1, n, dtype=torch.long)), Arg((4,), 1)),
    ],
)
family(
    "take_along_dim",
    lambda n: [
        yes(lambda f, x, i: f(x, i, 1), Arg((4,)), Arg((2,), **INT)),
        no(lambda f, x, i: f(x, i * 0, 0), Arg((n,)), Arg((n,), **INT)),
        no(lambda f, x, i: f(x, i), Arg((4,)), Arg((2,), **INT)),
    ],
)
family(
    "index_fill",
    lambda n: [
        Case(lambda f, x, d=d: f(x, d, torch.tensor([1]), 0.5), (a,), d != a.axis)
        for a in every_layout(n)
        for d in range(3)
    ],
)
family(
    "index_select",
    lambda n: [
        *(
            Case(lambda f, x, d=d: f(x, d, torch.tensor([1, 0])), (a,), d != a.axis)
            for a in every_layout(n)
            for d in range(3)
        ),
        no(lambda f, x, i: f(x, 0, i * 0), Arg((n,)), Arg((), **INT)),
        yes(lambda f, i: f(const(5, 3), 0, i), Arg((), **INT)),
        yes(lambda f, x: f(x, 0, torch.arange(x.shape[0])), Arg((n,))),
        no(lambda f, x: f(const(5, 3), 0, torch.arange(x.shape[0])) + x, Arg((3,))),
        yes(lambda f, x: f(x, 0, torch.argsort(x[:, 0])), Arg((n,))),
    ],
)
family(
    "index_add index_copy",
    lambda n: [
        yes(lambda f, x, y: f(x, 1, torch.tensor([0, 2]), y), Arg((3,)), Arg((2,))),
        no(lambda f, x, y, i: f(x, 0, i * 0, y), Arg((3,)), Arg((3,)), Arg((), **INT)),
        no(lambda f, x, y: f(x, 0, torch.arange(n), y), Arg((3,)), Arg((3,), 1))
        if n == 3
        else no(lambda f, x, y: f(x, 0, torch.zeros(n, dtype=torch.long), y), Arg((3,)), Arg((3,))),
        no(lambda f, x: f(x, 0, torch.arange(x.shape[0]), const(n, 3)), Arg((3,))),
        yes(lambda f, x, y: f(x, 0, torch.arange(x.shape[0]), y), Arg((3,)), Arg((3,))),
    ],
)
family(
    "scatter",
    lambda n: [
        yes(lambda f, x, i, y: f(x, 1, i, y), Arg((4,)), Arg((1,), **INT), Arg((1,))),
        yes(lambda f, x, i: f(x, 1, i, 0.5), Arg((4,)), Arg((1,), **INT)),
        no(lambda f, x, i, y: f(x, 0, i * 0, y), Arg((n,)), Arg((n,), **INT), Arg((n,))),
        no(lambda f, x, i, y: f(x, 1, i * 0, y), Arg((n,)), Arg((n,), 1, **INT), Arg((n,))),
    ],
)
family("scatter_add", lambda n: [c for c in FAMILIES["scatter"](n) if len(c.args) == 3])
family(
    "scatter_reduce",
    lambda n: [
        Case(lambda f, x, i, y, c=c: c.call(lambda *a: f(*a, "sum"), x, i, y), c.args, c.proven)
        for c in FAMILIES["scatter_add"](n)
    ],
)
family(
    "nonzero argwhere",
    lambda n: [
        yes(lambda f, x: f(x), Arg((), kind="bool"), gradients=False, values=False),
        yes(lambda f, x: f(x), Arg((n,), kind="bool"), values=False),
    ],
)
family(
    "masked_select",
    lambda n: [
        *(yes(lambda f, x, m: f(x, m), a, Arg(a.shape, a.axis, "bool", a.fold)) for a in every_layout(n)),
        no(lambda f, x, m: f(x, m), Arg((n,)), Arg((n,), 1, "bool")),
    ],
)
family(
    "__getitem__",
    lambda n: [
        *(
            Case(lambda f, x, i=i: f(x, i), (Arg((n, 3)),), p)
            for i, p in [
                ((slice(None), 1), True),
                ((Ellipsis, 0), True),
                ((slice(None), None, slice(1, 2)), True),
                ((None,), True),
                ((slice(None), torch.tensor([0, 1, 0])), True),
                ((slice(None), slice(None), [0, 2]), True),
                ((slice(None), torch.tensor([0, 1]), torch.tensor([2, 1])), True),
                (0, False),
                (slice(1), False),
                ((slice(None), const(n, 3) > 0.6), True),
                (torch.arange(n), False),
                ([0] * n, False),
                (torch.tensor([True] * n), False),
                (slice(1, None), False),
                ((slice(None), torch.tensor(1)), True),
                ((True,), False),
                (slice(None, None, 2), False),
            ]
        ),
        maybe(lambda f, x: f(x, (torch.tensor(0), slice(None), torch.arange(n))), Arg((n, n), 1)),
        maybe(lambda f, x: f(x, (torch.arange(n), slice(None), torch.arange(n))), Arg((n, n), 1)),
        maybe(lambda f, x: f(x, (slice(None), torch.arange(n), None, torch.arange(n))), Arg((n, n), 0)),
        yes(lambda f, x, i: f(x, (torch.arange(x.shape[0]), i)), Arg((4,)), Arg((), **INT)),
        yes(lambda f, x, i: f(x, (torch.arange(x.shape[0])[:, None], i)), Arg((4,)), Arg((2,), **INT)),
        no(lambda f, x, i: f(x, (i * 0,)), Arg((4,)), Arg((), **INT)),
        no(lambda f, x, i: f(x, (slice(None), i)), Arg((4,)), Arg((), **INT)),
        yes(lambda f, i: f(const(5, 3), i), Arg((2,), **INT)),
        yes(lambda f, x, m: f(x, m), Arg((4,)), Arg((), kind="bool")),
        yes(lambda f, x, m: f(x, m), Arg((4,)), Arg((4,), kind="bool")),
        no(lambda f, x, m: f(x, m), Arg((n,)), Arg((n,), 1, "bool")),
        no(
            lambda f, x, m, k: f(x, m) * f(x, k)[:1].sum(),
            Arg((4,)),
            Arg((), kind="bool"),
            Arg((), kind="bool"),
        ),
        no(lambda f, x: f(x, torch.arange(x.shape[0]) < 1), Arg((4,))),
        no(lambda f, x: f(const(9), slice(x.shape[0])).sum() * x, Arg((4,))),
        yes(lambda f, x: f(x, slice(n)), Arg((3,), 0, fold="outer")),
        yes(lambda f, x: f(x, slice(1, None, 2)), Arg((3,), 0, fold="inner")),
        no(lambda f, x: f(x, slice(1, 2 * n - 1, 2)), Arg((3,), 0, fold="inner")),
    ],
)
family(
    "__setitem__",
    lambda n: [
        *(
            Case(_written(i, v), (Arg((3,)),), p)
            for i, v, p in [
                ((slice(None), 0), 1.5, True),
                (0, 1.5, False),
                (slice(1, None), 1.5, False),
                ((slice(None), [0, 1]), const(2), True),
                (slice(None), const(n, 3), False),
                (slice(None), const(3), True),
            ]
        ),
        yes(lambda f, x, y: _set(f, x, (slice(None), 1), y), Arg((3,)), Arg(())),
        no(lambda f, x, y: _set(f, x, (slice(None), slice(n)), y), Arg((n,)), Arg((n,), 1)),
        yes(lambda f, x, m: _set(f, x, m, 0.0), Arg((3,)), Arg((), kind="bool")),
        no(lambda f, x, m: _set(f, x, m, 0.0), Arg((n,)), Arg((n,), 1, "bool")),
        yes(
            lambda f, x: _set(f, torch.zeros(x.shape[0], 5, dtype=x.dtype), (slice(None), slice(1, 4)), x),
            Arg((3,)),
        ),
        no(lambda f, x: x * _set(f, torch.zeros(x.shape[0], 1, dtype=x.dtype), 0, 1.0), Arg((3,))),
        no(lambda f, x: x * _set(f, torch.zeros(9, dtype=x.dtype), slice(x.shape[0]), 1.0).sum(), Arg((3,))),
        no(lambda f, x: _set(f, x.repeat_interleave(2, 0), slice(1, 2 * n - 1, 2), 0.0), Arg((3,))),
    ],
)
