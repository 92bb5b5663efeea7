"""Rules of functions that broadcast: each number of the result belongs to one place."""

from collections.abc import Iterable

from torch import Tensor

from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.separation.call import Call, Found, Mixing


def broadcast(call: Call, tensors: Iterable[Tensor], dim: int) -> Place | None:
    """Aligns tensors from the last axis: all data must have its examples at one place."""
    found: Place | None = None
    spread: Place | None = None  # of constants that are the same for each example
    constants = []
    for t in tensors:
        place = call.place(t)
        if place is None:
            constants.append(t)
            continue
        if t.dim() != dim:
            place = place.shifted(dim - t.dim())
        mark = call.mark(t)
        if mark is not None and mark.alike:
            constants.append(t)
            if spread is not None and spread != place:
                raise Mixing(f"{call.name} combines constants that were spread over the examples elsewhere")
            spread = place
        elif found is None:
            found = place
        elif found != place:
            raise Mixing(f"{call.name} combines each example with others")
    if found is None:
        return spread
    for t in constants:
        call.constant(t, found.axis - dim + t.dim(), found)
    return found


def elementwise(call: Call) -> Found:
    """Follows a function of numbers at the same place."""
    result = call.result
    if not isinstance(result, Tensor):
        result = result[0]
    return broadcast(call, call.tensors(), result.dim())


def copied(call: Call) -> Found:
    """Follows `x.copy_(source)`, whatever `x` held before."""
    x, source = call.first, call.get(1, "src", "other")
    place = call.place(x)
    if place is not None and call.place(source) is None:
        call.constant(source, place.axis - x.dim() + source.dim(), place)
        return place
    return broadcast(call, (source,), x.dim())


def cast(call: Call) -> Found:
    """Follows a function that keeps the shape."""
    return call.place(call.first)


def pointwise_loss(call: Call) -> Found:
    """Follows a loss of numbers at the same place, without reduction."""
    tensors = list(call.tensors())
    dim = max(t.dim() for t in tensors)
    if call.kwargs.get("reduction", "mean") != "none" or call.result.dim() != dim:
        raise Mixing(f'{call.name} without reduction="none" runs over the examples')
    return broadcast(call, tensors, dim)


def dropped(call: Call) -> Found:
    """Follows dropout, whose masks do not depend on the data."""
    call.only(call.first)
    return call.place(call.first)
