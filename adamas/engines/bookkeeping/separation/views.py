"""Rules of functions that reshape, move, spread, cut and join."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from adamas.engines.bookkeeping.counts import SIZE, Count
from adamas.engines.bookkeeping.places import Place, viewed
from adamas.engines.bookkeeping.separation.axes import along, axes_of
from adamas.engines.bookkeeping.separation.call import Call, Found, Mark, Mixing
from adamas.engines.bookkeeping.separation.elementwise import broadcast


def reshaped(call: Call) -> Found:
    """Follows a reshape."""
    x, result = call.first, call.result
    if len(call.args) > 1 and isinstance(call.args[1], torch.dtype):
        raise Mixing("view as another number type is not followed")
    other = call.get(1, "other")
    call.only(x, *([other] if isinstance(other, Tensor) and other.dim() else []))
    place = call.place(x)
    if place is None:
        if any(isinstance(size, Count) for size in _all_sizes(call)):
            raise Mixing(f"{call.name} shapes a constant by the number of examples")
        return None
    found = viewed(place, x.shape, result.shape, call.n)
    if found is None:
        raise Mixing(f"{call.name} leaves the examples on no axis of their own")
    if call.name in ("view", "reshape"):
        _check_counts(call, sizes_of(call), found)
    elif call.name == "unflatten":
        axis = axes_of(call.get(1, "dim"), x.dim())[0]
        _check_counts(call, call.get(2, "sizes"), found.shifted(-axis))
    return found


def _all_sizes(call: Call) -> Iterator[Any]:
    for value in (*call.args, *call.kwargs.values()):
        yield from value if isinstance(value, list | tuple) else (value,)


def _check_counts(call: Call, sizes: Sequence[Any], place: Place) -> None:
    """Raises if a number of examples is the size of another axis than theirs."""
    unit = place.rows if place.rows is not None and place.rows.chosen else call.unit
    for axis, size in enumerate(sizes):
        if isinstance(size, Count) and (axis != place.axis or size.unit is not unit):
            raise Mixing(f"{call.name} makes an axis as long as the batch that does not hold its examples")


def moved(order: Callable[[Call, int], Sequence[int]]) -> Callable[[Call], Found]:
    """Makes the rule of a function that permutes the axes; `order` tells which axis moves to each place."""

    def rule(call: Call) -> Found:
        x = call.first
        place = call.place(x)
        return None if place is None else place._replace(axis=list(order(call, x.dim())).index(place.axis))

    return rule


def permuted(call: Call, dim: int) -> Sequence[int]:
    """Returns the order of the axes after `permute`."""
    dims = call.kwargs.get("dims", call.args[1:])
    return axes_of(dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims, dim)


def transposed(call: Call, dim: int) -> Sequence[int]:
    """Returns the order of the axes after a transposition."""
    if call.name in ("t", "T", "mT", "adjoint", "mH", "H"):
        if call.name == "T":
            return range(dim)[::-1]
        a, b = (0, 1) if dim == 2 else (dim - 2, dim - 1)
        if dim < 2:
            return range(dim)
    else:
        pair = (call.get(1, "dim0", "axis0"), call.get(2, "dim1", "axis1"))
        a, b = axes_of(pair, dim)
    order = list(range(dim))
    order[a], order[b] = order[b], order[a]
    return order


def moved_axes(call: Call, dim: int) -> Sequence[int]:
    """Returns the order of the axes after `movedim`."""
    source, target = (axes_of(call.get(i, name), dim) for i, name in ((1, "source"), (2, "destination")))
    order = [axis for axis in range(dim) if axis not in source]
    for to, axis in sorted(zip(target, source, strict=True)):
        order.insert(to, axis)
    return order


def unsqueeze(call: Call) -> Found:
    """Follows a new axis."""
    place = call.place(call.first)
    if place is None:
        return None
    axis = axes_of(call.get(1, "dim"), call.result.dim())[0]
    return place.shifted(axis <= place.axis)


def squeeze(call: Call) -> Found:
    """Follows axes of length 1 that are dropped."""
    x = call.first
    place = call.place(x)
    if place is None:
        return None
    dims = call.get(1, "dim")
    axes = range(x.dim()) if dims is None else axes_of(dims, x.dim())
    if place.axis in axes:
        call.unit.single_differs = True  # for a single example, the axis would be removed
    gone = [axis for axis in axes if x.shape[axis] == 1]
    if place.axis in gone:
        raise Mixing(f"{call.name} removes the axis of the examples")
    return place.shifted(-sum(axis < place.axis for axis in gone))


def sizes_of(call: Call) -> Sequence[Any]:
    """Returns the sizes among the arguments, given one by one or together."""
    given = call.kwargs.get("size", call.kwargs.get("shape", call.kwargs.get("repeats", call.args[1:])))
    if len(given) == 1 and not isinstance(given[0], SIZE):
        return list(given[0])
    return list(given)


def expanded(call: Call) -> Found:
    """Follows an expansion, also of a constant over the examples."""
    x = call.first
    result = call.result
    other = call.get(1, "other")
    if isinstance(other, Tensor):
        return broadcast(call, (x, other), result.dim())
    call.only(x)
    place, sizes = call.place(x), sizes_of(call)
    if place is not None:
        place = place.shifted(result.dim() - x.dim())
        _check_counts(call, sizes, place)
        return place
    found = over_examples(call, sizes)
    if found is None:
        return None
    call.constant(x, found.axis + x.dim() - len(sizes), found)
    return Mark(call.owner, found, alike=True)


def over_examples(call: Call, sizes: Sequence[Any]) -> Place | None:
    """Returns the place in a constant that has a number of examples as a size."""
    counts = [(axis, size) for axis, size in enumerate(sizes) if isinstance(size, Count)]
    if not counts:
        return None
    if len(counts) > 1 or counts[0][1].unit is not call.unit:
        raise Mixing(f"{call.name} makes a tensor with several sizes that count examples")
    axis, count = counts[0]
    return Place(axis, 1, count.times)


def repeated(call: Call) -> Found:
    """Follows a repetition, also of a constant over the examples."""
    x = call.first
    call.only(x)
    sizes = sizes_of(call)
    place = call.place(x)
    new = len(sizes) - x.dim()
    counts = [axis for axis, size in enumerate(sizes) if isinstance(size, Count)]
    if place is None:
        if not counts:
            return None
        if len(counts) > 1 or sizes[counts[0]].unit is not call.unit:
            raise Mixing("repeat with several sizes that count examples")
        (axis,) = counts
        length = 1 if axis < new else x.shape[axis - new]
        return Mark(call.owner, Place(axis, 1, sizes[axis].times * length), alike=True)
    if counts:
        raise Mixing("repeat combines each example with others")
    axis = place.axis + new
    return place._replace(axis=axis, outer=place.outer * int(sizes[axis]))


def tiled(call: Call) -> Found:
    """Follows `tile`."""
    sizes = sizes_of(call)
    missing = call.first.dim() - len(sizes)
    padded = Call(
        *(
            call.name,
            (call.first, *([1] * missing), *sizes),
            {},
            call.result,
            call.mark,
            call.unit,
            call.owner,
        )
    )
    return repeated(padded)


def repeat_interleave(call: Call) -> Found:
    """Follows a repetition of each entry."""
    x, repeats, dim = call.first, call.get(1, "repeats"), call.get(2, "dim")
    dim = 0 if dim is None and x.dim() == 1 else dim
    if repeats is None or isinstance(repeats, Tensor) or dim is None:
        raise Mixing("repeat_interleave is followed only with a number and a dim")
    axis = axes_of(dim, x.dim())[0]
    place = call.place(x)
    if place is None:
        return Place(axis, x.shape[axis], repeats.times) if isinstance(repeats, Count) else None
    if isinstance(repeats, Count):
        raise Mixing("repeat_interleave combines each example with others")
    return place._replace(inner=place.inner * repeats) if axis == place.axis else place


def unfolded(call: Call) -> Found:
    """Follows `Tensor.unfold`."""
    x = call.first
    place = call.place(x)
    if place is None:
        return None
    if axes_of(call.get(1, "dimension"), x.dim())[0] == place.axis:
        raise Mixing("unfold runs along the examples")
    return place


def pieces(call: Call) -> Found:
    """Follows functions that cut one axis into pieces, or take some entries of it."""
    x = call.first
    call.only(x)
    place = call.place(x)
    if place is None:
        if any(isinstance(value, Count) for value in _all_sizes(call)):
            raise Mixing(f"{call.name} computes with the number of examples")
        return None
    if call.name in ("select", "narrow", "select_copy"):
        axis = axes_of(call.get(1, "dim"), x.dim())[0]
    elif call.name == "unbind":
        axis = axes_of(call.get(1, "dim", default=0), x.dim())[0]
    else:
        axis = axes_of(call.get(2, "dim", default=0), x.dim())[0]
    gone = call.name in ("select", "unbind")
    if axis != place.axis:
        if any(isinstance(value, Count) for value in _all_sizes(call)):
            raise Mixing(f"{call.name} computes with the number of examples")
        found = place.shifted(-(gone and axis < place.axis))
        return found if isinstance(call.result, Tensor) else [found for _ in call.result]
    if gone:
        raise Mixing(f"{call.name} takes single examples out of the batch")
    if call.name == "narrow":
        start, pieces = call.get(2, "start"), [call.result]
        if isinstance(start, Tensor):
            raise Mixing("narrow starts at an index from a tensor")
        return _blocks(call, place, [start], [call.result.shape[axis]])[0]
    pieces = list(call.result)
    starts, start = [], 0
    for piece in pieces:
        starts.append(start)
        start += piece.shape[axis]
    return list(_blocks(call, place, starts, [piece.shape[axis] for piece in pieces]))


def _blocks(call: Call, place: Place, starts: Sequence[int], lengths: Sequence[int]) -> list[Place]:
    """Finds stretches of the example axis that hold all examples, such as one of several joined batches."""
    size = place.length(call.n) * place.inner
    if any(start % size or length % size for start, length in zip(starts, lengths, strict=True)):
        raise Mixing(f"{call.name} takes some of the examples out of the batch")
    if place.outer == 1 and len(starts) > 1:
        raise Mixing(f"{call.name} takes some of the examples out of the batch")
    return [place._replace(outer=length // size) for length in lengths]


def stacked(call: Call) -> Found:
    """Follows `stack`."""
    tensors = call.args[0] if call.args else call.kwargs["tensors"]
    dim = tensors[0].dim()
    place = broadcast(call, tensors, dim)
    if place is None:
        return None
    axis = axes_of(call.get(1, "dim", default=0), dim + 1)[0]
    return place.shifted(axis <= place.axis)


def concatenated(call: Call) -> Found:
    """Follows `cat`."""
    tensors = call.args[0] if call.args else call.kwargs["tensors"]
    return joined(call, tensors, call.get(1, "dim", "axis", default=0), call.result)


def joined(call: Call, tensors: Sequence[Tensor], dim: Any, result: Tensor) -> Place | None:
    """Follows tensors that are joined along an axis, which may be that of the examples."""
    tensors = [t for t in tensors if t.dim() == result.dim()]  # torch ignores empty vectors
    axis = axes_of(dim, result.dim())[0]
    places = [call.place(t) for t in tensors]
    found = next((p for p in places if p is not None), None)
    if found is None:
        return None
    outer = 0
    for t, place in zip(tensors, places, strict=True):
        if place is None:
            if axis == found.axis:
                raise Mixing(f"{call.name} joins examples with constants along the batch")
            call.constant(t, found.axis, found)
            continue
        if axis == found.axis:
            if place._replace(outer=1) != found._replace(outer=1):
                raise Mixing(f"{call.name} joins tensors that hold their examples at different places")
            outer += place.outer
        elif place != found:
            raise Mixing(f"{call.name} combines each example with others")
    return found._replace(outer=outer) if axis == found.axis else found


def broadcast_tensors(call: Call) -> Found:
    """Follows `broadcast_tensors`."""
    dim = call.result[0].dim()
    tensors = list(call.tensors())
    place = broadcast(call, tensors, dim)
    return [place if place is not None else None for _ in tensors]


def differences(call: Call) -> Found:
    """Follows `diff`."""
    x, dim = call.first, call.get(2, "dim", default=-1)
    given = [t for t in (x, call.get(3, "prepend"), call.get(4, "append")) if t is not None]
    along(call, x, dim)
    return joined(call, given, dim, call.result)
