"""Rules of functions that run along some axes: sums, softmax, cumulative sums, normalisation."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from adamas.engines.bookkeeping.counts import Count
from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.separation.call import ALL, Call, Found, Mark, Mixing
from adamas.engines.bookkeeping.separation.elementwise import elementwise


def axes_of(value: Any, dim: int) -> list[int]:
    """Returns axes as numbers from the first."""
    axes = [value] if isinstance(value, int) else list(value)
    return [axis + dim if axis < 0 else axis for axis in axes]


def along(call: Call, x: Tensor, dims: Any) -> Place | None:
    """Lets a function mix along some axes, which must not hold the examples."""
    place = call.place(x)
    if place is None:
        return None
    if dims is None or dims is ALL or isinstance(dims, bool) or (not isinstance(dims, int) and not len(dims)):
        raise Mixing(f"{call.name} runs over all examples")
    axes = axes_of(dims, x.dim())
    if place.axis in axes:
        raise Mixing(f"{call.name} runs along the examples")
    result = call.result if isinstance(call.result, Tensor) else call.result[0]
    kept = result.dim() == x.dim()
    return place if kept else place.shifted(-sum(axis < place.axis for axis in axes))


def along_axis(position: int, default: Any = ALL) -> Callable[[Call], Found]:
    """Makes the rule of a function along the axes that an argument names."""

    def rule(call: Call) -> Found:
        x = call.first
        call.only(x)
        return along(call, x, call.get(position, "dim", "axis", "dims", default=default))

    return rule


def total(call: Call) -> Found:
    """Follows a sum; one over all examples is mixed, but may be differentiated."""
    x = call.first
    dims = call.get(1, "dim", "axis", default=ALL)
    place = call.place(x)
    if place is not None and (dims is ALL or dims is None):
        return Mark(call.owner, None, "sum runs over all examples", total=True)
    return along_axis(1)(call)


def largest(call: Call) -> Found:
    """Follows `max` and `min`, of two tensors or along an axis."""
    other = call.get(1, "other")
    return elementwise(call) if isinstance(other, Tensor) else along_axis(1)(call)


def softmax(call: Call) -> Found:
    """Follows softmax, whose axis torch guesses if none is given."""
    x = call.first
    dims = call.get(1, "dim")
    if dims is None:
        dims = 0 if x.dim() in (0, 1, 3) else 1
    return along(call, x, dims)


def flipped(call: Call) -> Found:
    """Follows `flip`."""
    dims = call.kwargs.get("dims", call.args[1:])
    return along(call, call.first, dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)


def quantile(call: Call) -> Found:
    """Follows a quantile of one level."""
    if not isinstance(call.get(1, "q"), float):
        raise Mixing("quantile with several levels is not followed")
    return along_axis(2)(call)


def last_axes(count: int | Callable[[Call], int]) -> Callable[[Call], Found]:
    """Lets a function mix along the last axes."""

    def rule(call: Call) -> Found:
        x = call.first
        k = count if isinstance(count, int) else count(call)
        call.only(x)
        place = call.place(x)
        if place is not None and place.axis >= x.dim() - k:
            raise Mixing(f"{call.name} runs along the examples")
        return place

    return rule


def normalized(call: Call) -> int:
    """Returns over how many axes a layer normalises."""
    shape = call.get(1, "normalized_shape")
    return 1 if isinstance(shape, int) else len(shape)


def padded(call: Call) -> Found:
    """Follows `pad`, which must not lengthen the axis of the examples."""
    x, pad = call.first, call.get(1, "pad")
    call.only(x)
    place = call.place(x)
    if place is not None:
        sides = pad[2 * (x.dim() - 1 - place.axis) :][:2]
        if any(sides) or any(isinstance(size, Count) for size in pad):
            raise Mixing("pad adds entries to the axis of the examples")
    return place


def gated(call: Call) -> Found:
    """Follows `glu`."""
    return along(call, call.first, call.get(1, "dim", default=-1))
