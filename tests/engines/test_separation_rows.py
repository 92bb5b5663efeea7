"""Each row of the table of functions that separate examples is sound, compared with torch itself.

A function is its own reference. Its result for an example must be the same in a batch of copies of that
example, at each position and for another number of copies. The gradient of this result must be zero for the
inputs of all other examples. Other axes are as long as the batch, so that sizes do not reveal the examples.
"""

import contextlib
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adamas.engines.bookkeeping.separation import IN_PLACE, TABLE
from adamas.engines.bookkeeping.separation.table import _HOMES
from tests.support import calls_of_layers, calls_of_numbers, calls_of_views  # noqa: F401, register cases
from tests.support.separated_calls import FAMILIES, NAMES, Arg, check_sound, maybe, recorded, yes

pytestmark = pytest.mark.filterwarnings("ignore")


# --- every row --------------------------------------------------------------------------------------------

# Functions whose cases cannot run here, and the reason.
EXCEPTIONS = {
    "cuda": "needs another device; its rule is that of cpu",
}


def base_names(function):
    for name in sorted(NAMES.get(function, ())):
        yield name
        if function in IN_PLACE:
            yield name.removesuffix("_")


def cases_of(function):
    return next((FAMILIES[name] for name in base_names(function) if name in FAMILIES), None)


def is_operator_of_a_module(function):
    """Finds functions like `getattr(torch, "__eq__")`, which compare modules and never get a tensor."""
    return isinstance(getattr(function, "__self__", None), type(torch) | type) and "__" in function.__name__


def test_every_row_has_a_case():
    without = [
        function
        for function in (*TABLE, *IN_PLACE)
        if cases_of(function) is None and not is_operator_of_a_module(function)
    ]
    assert not without
    assert len(EXCEPTIONS) < 5


def label(function):
    home = next((h.__name__ for h in _HOMES if function in vars(h).values()), "")
    return f"{home}.{next(base_names(function), function)}"


ROWS = [f for f in (*TABLE, *IN_PLACE) if not is_operator_of_a_module(f)]
FAILS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)


def in_place(function):
    """Makes a function that changes and returns a copy of its first argument."""

    def call(x, *args, **kwargs):
        x = x.clone()
        function(x, *args, **kwargs)
        return x

    call.__name__ = getattr(function, "__name__", "")
    return call


@pytest.mark.slow
@pytest.mark.parametrize("function", ROWS, ids=label)
def test_rows_are_sound_and_complete(function):
    ran = proven = 0
    own = {"unsqueeze_", "__setitem__"}
    changes = function in IN_PLACE and not own & NAMES[function]
    f = in_place(function) if changes else ADAPTED.get(label(function), lambda f: f)(function)
    for n in (2, 3):
        for case in cases_of(function)(n):
            try:
                try:
                    answer = check_sound(case, f, n)
                except NotImplementedError:  # torch has no derivative
                    answer = check_sound(dataclasses.replace(case, gradients=False), f, n)
            except FAILS:
                assert (
                    not isinstance(case.proven, bool)
                    or changes
                    or case.proven is False
                    or is_foreign(function)
                )
                continue
            ran += 1
            proven += answer
            if case.proven is False or (case.proven and not changes and not is_foreign(function)):
                assert answer is case.proven, f"{'' if answer else 'not '}proven: n = {n}, {case.args}"
    if not set(EXCEPTIONS) & NAMES[function]:
        assert ran
        assert proven or is_foreign(function)


def is_foreign(function):
    """Finds functions of C that take other arguments than their Python form."""
    return function in vars(torch._C._nn).values() or label(function) in UNFOLLOWED


# These take reductions as numbers, or offsets, or lists.
UNFOLLOWED = {
    *("torch.batch_norm", "torch.binary_cross_entropy_with_logits", "torch.ctc_loss", "torch.embedding_bag"),
    *("torch.kl_div", "torch.poisson_nll_loss", ".einsum", ".broadcast_tensors", ".split", ".norm", ".cdist"),
}

ADAPTED = {
    ".einsum": lambda f: lambda equation, *operands: f(equation, list(operands)),
    ".broadcast_tensors": lambda f: lambda *tensors: f(list(tensors)),
    "torch.poisson_nll_loss": lambda f: (
        lambda x, y, reduction=1: f(x, y, True, False, 1e-8, _number(reduction))
    ),
    "torch.ctc_loss": lambda f: lambda *args, reduction: f(*args, 0, _number(reduction)),
}


def _number(reduction):
    return 0 if reduction == "none" else reduction


# --- random chains of calls -------------------------------------------------------------------------------

VIEWS = {
    "transpose": lambda x, a, b: x.transpose(a % x.dim(), b % x.dim()),
    "flatten": lambda x, a, b: x.flatten(min(a % x.dim(), b % x.dim()), max(a % x.dim(), b % x.dim())),
    "unflatten": lambda x, a, b: x.unflatten(a % x.dim(), (2 + b % 2, -1)),
    "reshape": lambda x, a, b: x.reshape(2 + a % 2, -1, 1 + b % 3),
    "unsqueeze": lambda x, a, b: x.unsqueeze(a % (x.dim() + 1)),
    "squeeze": lambda x, a, b: x.squeeze(),
    "select": lambda x, a, b: x.select(a % x.dim(), b % 2),
    "narrow": lambda x, a, b: x.narrow(a % x.dim(), b % 2, 1 + b % 3),
    "slice": lambda x, a, b: x.transpose(0, a % x.dim())[b % 2 :: 1 + a % 2].transpose(0, a % x.dim()),
    "chunk": lambda x, a, b: x.chunk(2, a % x.dim())[b % 2],
    "cat": lambda x, a, b: torch.cat([x, x * 2], a % x.dim()),
    "stack": lambda x, a, b: torch.stack([x, x * 2], a % (x.dim() + 1)),
    "repeat": lambda x, a, b: x.repeat(*[1 + (k == a % x.dim()) for k in range(x.dim())]),
    "repeat_interleave": lambda x, a, b: x.repeat_interleave(2, a % x.dim()),
    "sum": lambda x, a, b: x.sum(a % x.dim(), keepdim=bool(b % 2)),
    "cumsum": lambda x, a, b: x.cumsum(a % x.dim()),
    "matmul": lambda x, a, b: x @ torch.ones(x.shape[-1], 2, dtype=x.dtype),
    "product": lambda x, a, b: x * torch.ones(int(x.detach().shape[-1]), dtype=x.dtype).cumsum(0),
    "self": lambda x, a, b: x + x.transpose(a % x.dim(), b % x.dim()),
    "own": lambda x, a, b: x * x.flip(a % x.dim()),
    "index": lambda x, a, b: x[(slice(None),) * (a % x.dim()) + (torch.tensor([1, 0]),)],
    "pair": lambda x, a, b: x[torch.tensor([0, 1]), ..., torch.tensor([1, 0])],
    "row": lambda x, a, b: x[:, None, torch.tensor([1, 0])],
    "mask": lambda x, a, b: x[x > 0.5],
    "sort": lambda x, a, b: x.sort(a % x.dim())[0],
}
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(VIEWS)), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6
)


@pytest.mark.slow
@settings(max_examples=400, derandomize=True, deadline=None)
@given(STEPS, st.integers(2, 4), st.sampled_from([(2,), (3, 2), (4, 3)]), st.booleans())
def test_chains_of_views_are_sound(steps, n, shape, square):
    shape = (n, *shape) if square else shape

    def chain(f, x):
        for name, a, b in steps:
            if x.dim():
                x = VIEWS[name](x, a, b)
        return x

    with contextlib.suppress(*FAILS):
        check_sound(maybe(chain, Arg(shape)), None, n)


LETTERS = st.text("abcd", min_size=1, max_size=3)


@pytest.mark.slow
@settings(max_examples=200, derandomize=True, deadline=None)
@given(LETTERS, LETTERS, LETTERS, st.integers(0, 2), st.integers(0, 2), st.integers(2, 3))
def test_einsum_is_sound_for_any_equation(first, second, output, a, b, n):
    def call(f, x, y=None):
        return torch.einsum(
            f"{first},{second}->{output}", x, torch.ones([n] * len(second), dtype=x.dtype) if y is None else y
        )

    x = Arg((n,) * (len(first) - 1), a % len(first))
    y = Arg((n,) * (len(second) - 1), b % len(second))
    for args in ((x, y), (x,)):
        with contextlib.suppress(*FAILS):
            check_sound(maybe(call, *args), None, n)


ITEMS = st.lists(
    st.sampled_from(
        ["int", "slice", "part", "none", "dots", "list", "zero", "pair", "arange", "data", "step"]
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(ITEMS, st.integers(0, 2), st.sampled_from(["", "inner", "outer"]), st.integers(2, 3), st.booleans())
def test_indexing_is_sound_for_any_index(items, axis, fold, n, write):
    def call(f, x, y):
        index = tuple(
            {
                "int": 0,
                "slice": slice(None),
                "part": slice(0, n),
                "none": None,
                "dots": Ellipsis,
                "list": [1, 0],
                "zero": torch.tensor(1),
                "pair": torch.zeros(n, dtype=torch.long),
                "step": slice(0, None, 2),
                "arange": torch.arange(x.shape[axis]) if not fold else slice(None),
                "data": y,
            }[item]
            for item in items
        )
        if write:
            x = x.clone()
            x[index] = 0.5
            return x
        return x[index]

    with contextlib.suppress(*FAILS):
        check_sound(maybe(call, Arg((n, 3), axis, fold=fold), Arg((), kind="int")), None, n)


@pytest.mark.parametrize("name", ["sin", "exp", "tanh", "abs"])
def test_vmap_gives_the_same_values_on_the_same_axis(name):
    function = getattr(torch, name)
    for axis in range(3):
        case = yes(lambda f, x: f(x), Arg((3, 2), axis))
        x = case.args[0].values(3, torch.Generator().manual_seed(0))
        _, (t,), (mark,) = recorded(case, function, [x])
        moved = torch.func.vmap(function, in_dims=axis, out_dims=mark.place.axis)(case.args[0].placed(x))
        torch.testing.assert_close(t.detach(), moved)
