"""A harness for the rows of the separation table.

It runs a call on a batch, and checks the place of the examples that the row's rule proves. A case is a call
with data whose examples are on some axis, plain or folded with another. A proven place must be right: the
part of an example in the result equals that of a batch of copies of the example, and its gradient reaches no
other example. `calls_of_*` register the cases of each family of functions in `FAMILIES`.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adamas import Geometry, UnsupportedError
from adamas.engines.bookkeeping.arguments import tensors_in
from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.recording import Recorder
from adamas.engines.bookkeeping.separation import IN_PLACE, TABLE
from adamas.engines.bookkeeping.separation.table import _HOMES


@dataclass
class Arg:
    """A data argument: the shape of an example, the axis of the examples, and how it is folded."""

    shape: tuple[int, ...]
    axis: int = 0
    kind: str = "unit"
    fold: str = ""

    def values(self, n: int, generator: torch.Generator) -> Tensor:
        shape = (n, *((2,) if self.fold else ()), *self.shape)
        x = torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1
        if self.kind == "normal":
            return (x - 0.5) * 3
        if self.kind == "int":
            return (x * 3.99).long()
        if self.kind == "bool":
            return x > 0.5
        if self.kind == "complex":
            return torch.complex(x, x.flip(-1))
        if self.kind == "matrix":
            return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)
        return x

    def placed(self, x: Tensor) -> Tensor:
        if self.fold == "inner":
            x = x.flatten(0, 1)
        elif self.fold == "outer":
            x = x.transpose(0, 1).flatten(0, 1)
        return x.movedim(0, self.axis)


@dataclass
class Case:
    """A call with data. `proven` is the expected answer of the rule, or None if both answers are right."""

    call: Any
    args: tuple[Arg, ...]
    proven: bool | None = True
    values: bool = True  # False for random values
    gradients: bool = True


def yes(call, *args, **options):
    return Case(call, args, True, **options)


def maybe(call, *args, **options):
    return Case(call, args, None, **options)


def no(call, *args, **options):
    return Case(call, args, False, **options)


WEIGHT = nn.Parameter(torch.zeros(1))


def recorded(case, f, data):
    """Runs a case under the recorder. Returns inputs, outputs and their marks, or None if it is refused."""
    n = len(data[0])
    recorder = Recorder({WEIGHT: "w"}, n, Geometry.ball([WEIGHT]))
    inputs = [recorder.start(x) for x in data]
    for x in inputs:
        if x.is_floating_point() and case.gradients:
            x.requires_grad_()
    try:
        with recorder.watching():
            result = case.call(f, *(arg.placed(x) for arg, x in zip(case.args, inputs, strict=True)))
        outputs = list(tensors_in(result))
        marks = [recorder.mark(t) for t in outputs]
    except UnsupportedError:
        return None
    return inputs, outputs, marks


def plainly(case, f, data):
    result = case.call(f, *(arg.placed(x.detach()) for arg, x in zip(case.args, data, strict=True)))
    return list(tensors_in(result))


def owners(place: Place, n: int) -> Tensor:
    """Returns the example that each entry of the axis belongs to."""
    rows = torch.arange(n) if place.rows is None else place.rows.owner
    return rows.view(1, -1, 1).expand(place.outer, -1, place.inner).reshape(-1)


def part(t: Tensor, place: Place, n: int, i: int) -> Tensor:
    return t.detach().movedim(place.axis, 0)[owners(place, n) == i]


def same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() and not a.is_complex():
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-6, atol=1e-8, equal_nan=True)


def copies(data, i, n):
    return [x[i : i + 1].expand(n, *x.shape[1:]).clone() for x in data]


def check_sound(case, f, n, seed=0):
    """Checks that proven places are right, and returns whether any was proven."""
    generator = torch.Generator().manual_seed(seed)
    data = [arg.values(n, generator) for arg in case.args]
    found = recorded(case, f, data)
    if found is None:
        return False
    inputs, outputs, marks = found
    places = [None if mark is None else mark.place for mark in marks]
    if any(mark is not None and mark.why is not None for mark in marks) or all(p is None for p in places):
        return any(mark is None for mark in marks) and not any(mark for mark in marks)
    for t, place in zip(outputs, places, strict=True):
        if place is not None:
            assert t.shape[place.axis] == len(owners(place, n))
    if case.values:
        for i, m in itertools.product(range(n), (n, n + 1)):
            if m != n and i:
                continue
            own = copies(data, i, m)
            try:
                again = recorded(case, f, own)
            except (RuntimeError, ValueError, IndexError, TypeError):
                if m == n:
                    raise
                continue  # a constant of the case fits only the first batch size
            if again is None:
                assert m != n or not case.proven
                continue
            for t, place, s, mark in zip(outputs, places, again[1], again[2], strict=True):
                if mark is not None and mark.numbers:
                    continue  # positions, which may serve as indices only
                if place is None:
                    assert same(t.detach(), s.detach()), "a constant differs from batch to batch"
                    continue
                if mark is None or mark.place is None:
                    assert m != n or not case.proven
                    continue
                for k in range(m):
                    assert same(part(t, place, n, i), part(s, mark.place, m, k)), f"example {i}, copy {k}"
    if case.gradients:
        check_gradients(inputs, outputs, places, n, generator)
    return True


def check_gradients(inputs, outputs, places, n, generator):
    leaves = [x for x in inputs if x.requires_grad]
    for i in (0, n - 1):
        total = 0.0
        for t, place in zip(outputs, places, strict=True):
            if place is None or not t.requires_grad:
                continue
            own = (owners(place, n) == i).view(-1, *[1] * (t.dim() - 1)).movedim(0, 0)
            own = own.expand(t.shape[place.axis], *[1] * (t.dim() - 1)).movedim(0, place.axis)
            weight = torch.rand(t.shape, generator=generator, dtype=torch.float64) * own
            total = total + ((t.real + t.imag) if t.is_complex() else t).double().mul(weight).sum()
        if not isinstance(total, Tensor) or not total.requires_grad:
            return
        for g in torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True):
            if g is not None:
                others = torch.arange(n) != i
                assert not g[others].nan_to_num(1.0, 1.0, 1.0).any(), f"example {i} reaches the others"


def check(case, f, sizes=(2, 3), seed=0):
    """Checks a case for some batch sizes, and returns how often it was proven."""
    count = 0
    for n in sizes:
        one = case(n) if callable(case) and not isinstance(case, Case) else case
        proven = check_sound(one, f, n, seed)
        if one.proven is not None:
            assert proven is one.proven, f"{'not ' * (not proven)}proven: {one.args}, n = {n}"
        count += proven
    return count


def names_of() -> dict[Any, set[str]]:
    names: dict[Any, set[str]] = {}
    for home in _HOMES:
        for name in dir(home):
            value = getattr(home, name, None)
            if callable(value) and (value in TABLE or value in IN_PLACE):
                names.setdefault(value, set()).add(name)
    for function in TABLE:
        if getattr(function, "__name__", "") == "__get__":
            names.setdefault(function, set()).add(function.__self__.__name__)
    names.setdefault(torch.autograd.grad, set()).add("grad")
    for function in (*TABLE, *IN_PLACE):
        names.setdefault(function, set()).add(getattr(function, "__name__", ""))
    return names


NAMES = names_of()


METHODS = {v for v in vars(torch.Tensor).values() if callable(v)} | {
    getattr(torch.Tensor, name) for name in dir(torch.Tensor) if callable(getattr(torch.Tensor, name, None))
}


# --- cases that several families share --------------------------------------------------------------------


def every_layout(n, dims=3, kind="unit", folds=("", "inner", "outer")):
    """Yields data with the examples on each axis, plain and folded. Another axis is as long as the batch."""
    shape = (n, 3, 2)[: dims - 1]
    for axis, fold in itertools.product(range(dims), folds):
        yield Arg(shape, axis, kind, fold)


def unary(call=lambda f, x: f(x), kind="unit", proven=True, **options):
    return lambda n: [Case(call, (arg,), proven, **options) for arg in every_layout(n, kind=kind)]


def binary(call=lambda f, x, y: f(x, y), kind="unit", other=None, proven=True, **options):
    other = other or kind

    def cases(n):
        for arg in every_layout(n, kind=kind):
            yield Case(call, (arg, Arg(arg.shape, arg.axis, other, arg.fold)), proven, **options)
        # Broadcast: (4, n, 3) and (n, 3).
        yield maybe(call, Arg((4, 3), 1, kind), Arg((3,), 0, other), **options)
        constant = Arg((3,), 0, other).values(1, torch.Generator().manual_seed(1))[0]
        yield Case(lambda f, x: call(f, x, constant), (Arg((n, 3), 0, kind),), proven, **options)
        # Aligned at the wrong axis: (n, n) and (n,).
        yield no(call, Arg((n,), 0, kind), Arg((), 0, other), **options)
        yield no(call, Arg((n,), 0, kind), Arg((n,), 1, other), **options)
        table = torch.arange(n).view(n, 1).double() + 1
        table = table.long() if other == "int" else table
        if other != "bool":
            # A constant that differs from position to position.
            yield no(lambda f, x: call(f, x, table), Arg((3,), 0, kind))

    return cases


def reduction(call, keepdim=True, whole=True, proven=True, kind="unit", size=None):
    """Makes cases of a function along one axis. It must be proven unless that is the axis of the examples."""

    def cases(n):
        for arg in every_layout(n, kind=kind):
            for dim in range(3):
                wanted = False if dim == arg.axis else proven
                yield Case(lambda f, x, dim=dim: call(f, x, dim), (arg,), wanted)
                if keepdim:
                    yield Case(lambda f, x, dim=dim - 3: call(f, x, dim, True), (arg,), wanted)
        if whole:
            yield no(lambda f, x: f(x), Arg((3,)))

    return cases


def leading(
    call, *shapes, kind="unit", proven=True, folds=("", "inner", "outer"), first_only=True, **options
):
    """Makes cases with the examples first. On other axes, the rule need not prove anything."""

    def cases(n):
        for fold in folds:
            yield Case(call, tuple(Arg(shape, 0, kind, fold) for shape in shapes), proven, **options)
        if len(shapes) == 1:
            for axis in range(1, len(shapes[0]) + 1):
                shape = (n, *shapes[0][1:]) if kind != "matrix" else shapes[0]
                yield maybe(call, Arg(shape, axis, kind), **options)

    return cases


def const(*shape, low=0.1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return (torch.rand(shape, generator=generator, dtype=torch.float64) + low).to(dtype)


def fixed(*cases):
    return lambda n: cases


FAMILIES: dict[str, Any] = {}


def family(names, cases):
    for name in names.split():
        FAMILIES[name] = cases


def unreduced(f, x, y):
    """Calls a loss without reduction. Python and C++ encode the option differently."""
    try:
        return f(x, y, reduction="none")
    except TypeError:  # a function of C++
        return f(x, y, reduction=0)
