"""Cases of matrix products, distances and bilinear layers."""

from tests.support.separated_calls import FAMILIES, Arg, Case, const, family, no, yes

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
