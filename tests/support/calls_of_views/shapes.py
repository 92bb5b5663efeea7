"""Cases of views, and of functions that repeat, split or join tensors."""

import itertools

from tests.support.separated_calls import METHODS, Arg, Case, const, every_layout, family, maybe, no, yes

family(
    "view",
    lambda n: [
        yes(lambda f, x: f(x, x.shape[0], -1), Arg((n, 2))),
        yes(lambda f, x: f(x, -1, 2), Arg((n, 2))),
        no(lambda f, x: f(x, -1), Arg((n,), 1)),
        yes(lambda f, x: f(x, -1), Arg((n,))),
        maybe(lambda f, x: f(x, 2, -1), Arg((n, 2))),
        no(lambda f, x: f(x, -1, x.shape[0]), Arg((n,))),
    ],
)
family(
    "reshape",
    lambda n: [
        yes(lambda f, x: f(x, (x.shape[0], -1)), Arg((n, 2))),
        maybe(lambda f, x: f(x, (n, n)), Arg((n,), 1)),
        maybe(lambda f, x: f(x, (2, -1)), Arg((n, 2), 1)),
        no(lambda f, x: f(x, (-1, x.shape[0])), Arg((n,))),
    ],
)
family(
    "flatten ravel",
    lambda n: [
        *(maybe(lambda f, x: f(x), arg) for arg in every_layout(n)),
        yes(lambda f, x: f(x), Arg((n, 2))),
    ],
)
family(
    "unflatten",
    lambda n: [
        *(
            maybe(lambda f, x, a=a: f(x, a.axis, (2, -1)), a)
            for a in every_layout(n, folds=("inner", "outer"))
        ),
        yes(lambda f, x: f(x, 1, (2, 2)), Arg((4,))),
    ],
)
family("view_as reshape_as", lambda n: [yes(lambda f, x: f(x, const(n, 6)), Arg((2, 3)))])
family(
    "permute",
    lambda n: [
        yes(lambda f, x, p=p: f(x, p), a) for a in every_layout(n) for p in itertools.permutations(range(3))
    ],
)
family(
    "transpose swapaxes swapdims movedim moveaxis",
    lambda n: [
        yes(lambda f, x, d=d, e=e: f(x, d, e), a) for a in every_layout(n) for d in range(3) for e in (-1, 0)
    ],
)
family("t H", lambda n: [yes(lambda f, x: f(x), a) for a in every_layout(n, dims=2)])
family("T adjoint mT mH", lambda n: [yes(lambda f, x: f(x), a) for a in every_layout(n)])
family(
    "unsqueeze unsqueeze_",
    lambda n: [
        yes(lambda f, x, d=d: f(x.clone(), d), a, gradients=True)
        for a in every_layout(n)
        for d in (0, 1, -1, -3)
    ],
)
family(
    "squeeze",
    lambda n: [
        *(yes(lambda f, x: f(x), Arg((1, n, 1), a)) for a in range(4)),
        *(yes(lambda f, x, d=d: f(x, d), Arg((1, n, 1), a)) for a in range(4) for d in range(-4, 4)),
    ],
)
family(
    "expand broadcast_to",
    lambda n: [
        yes(lambda f, x: f(x, (3, *x.shape)), Arg((n,))),
        yes(lambda f, x: f(x, (-1, 4)) if f in METHODS else f(x, (n, 4)), Arg((1,))),
        yes(lambda f, x: f(const(3), (x.shape[0], 3)) + x, Arg((3,))),
        no(lambda f, x: f(x[:, :1], (x.shape[0], x.shape[0])), Arg((n,))),
    ],
)
family(
    "expand_as",
    lambda n: [
        yes(lambda f, x, y: f(x, y), Arg((1,)), Arg((n,))),
        no(lambda f, x, y: f(x, y), Arg((1,)), Arg((n,), 1)),
        yes(lambda f, x: f(const(n), x), Arg((n,))),
    ],
)
family(
    "repeat tile",
    lambda n: [
        *(
            yes(lambda f, x, s=s: f(x, s), a)
            for a in every_layout(n)
            for s in ((2, 1, 1), (1, 2, 3), (2, 1, 1, 2))
        ),
        *([yes(lambda f, x: f(const(3), (x.shape[0], 1)) * x, Arg((3,)))] if n else []),
    ],
)
family(
    "repeat_interleave",
    lambda n: [
        *(yes(lambda f, x, d=d: f(x, 2, d), a) for a in every_layout(n) for d in range(3)),
        no(lambda f, x, r: f(x, r, 0), Arg((n,)), Arg((), 0, "int")),
        no(lambda f, x: f(x, 2), Arg((n,), 1)),
    ],
)
family(
    "chunk split tensor_split",
    lambda n: [
        Case(
            lambda f, x, d=d: f(x, 2 if f.__name__ != "split" else 1, d),
            (a,),
            None if a.fold else d != a.axis,
        )
        for a in every_layout(n)
        for d in range(3)
    ],
)
family(
    "split_with_sizes",
    lambda n: [
        yes(lambda f, x: f(x, [1, 2], 1), Arg((3,))),
        no(lambda f, x: f(x, [1, n - 1], 0), Arg((3,))),
        yes(lambda f, x: f(x, [n, n], 0), Arg((3,), 0, fold="outer")),
    ],
)
family(
    "unbind",
    lambda n: [Case(lambda f, x, d=d: f(x, d), (a,), d != a.axis) for a in every_layout(n) for d in range(3)],
)
family(
    "select",
    lambda n: [
        Case(lambda f, x, d=d: f(x, d, 1), (a,), d != a.axis) for a in every_layout(n) for d in range(3)
    ],
)
family(
    "narrow",
    lambda n: (
        [Case(lambda f, x, d=d: f(x, d, 1, 1), (a,), d != a.axis) for a in every_layout(n) for d in range(3)]
        + [yes(lambda f, x: f(x, 0, n, n), Arg((3,), 0, fold="outer"))]
    ),
)
family(
    "stack",
    lambda n: [
        *(yes(lambda f, x, y, d=d: f([x, y], d), a, a) for a in every_layout(n) for d in range(-4, 4)),
        no(lambda f, x, y: f([x, y]), Arg((n,)), Arg((n,), 1)),
        no(lambda f, x: f([x, const(n, n)]), Arg((n,))),
    ],
)
family(
    "cat concat concatenate",
    lambda n: [
        *(yes(lambda f, x, y, d=d: f([x, y], d), a, a) for a in every_layout(n) for d in range(3)),
        no(lambda f, x, y: f([x, y], 1), Arg((n,)), Arg((n,), 1)),
        no(lambda f, x: f([x, const(n, n)], 1), Arg((n,))),
        no(lambda f, x: f([x, const(n, n)], 0), Arg((n,))),
        no(lambda f, x: f([x, x]).view(x.shape[0], 2 * n), Arg((n,))),
    ],
)
family(
    "broadcast_tensors",
    lambda n: [
        yes(lambda f, x, y: f(x, y), Arg((1,)), Arg((n,))),
        no(lambda f, x, y: f(x, y), Arg((n,)), Arg((n,), 1)),
    ],
)
