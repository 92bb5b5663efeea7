"""Rules of functions that make constants, with the number of examples among their sizes."""

from torch import Tensor

from adamas.engines.bookkeeping.counts import SIZE, Count
from adamas.engines.bookkeeping.places import Place
from adamas.engines.bookkeeping.separation.call import PACKED_SIZES, Call, Found, Mark, Mixing, Picks
from adamas.engines.bookkeeping.separation.views import over_examples, sizes_of


def made(call: Call) -> Found:
    """Follows constants of one value or of random ones, with the number of examples among their sizes."""
    given = call.kwargs.get(
        "size", call.args[0] if call.args and not isinstance(call.args[0], SIZE) else None
    )
    sizes = list(given) if given is not None else [v for v in call.args if isinstance(v, (*SIZE, Tensor))]
    for axis, size in enumerate(sizes):
        if isinstance(size, Tensor):
            mark = call.mark(size)
            if mark is not None and mark.why == PACKED_SIZES and int(size) == call.n:
                sizes[axis] = Count(1, call.unit)
            elif mark is not None:
                raise Mixing(f"{call.name} reads a size from the batch")
    value = call.kwargs.get(
        "fill_value", call.args[1] if call.name == "full" and len(call.args) > 1 else None
    )
    if isinstance(value, Count):
        raise Mixing(f"{call.name} computes with the number of examples")
    if isinstance(value, Tensor) and call.mark(value) is not None:
        raise Mixing(f"{call.name} computes with values of the batch")
    return _alike(call, over_examples(call, sizes))


def _alike(call: Call, place: Place | None) -> Mark | None:
    return None if place is None else Mark(call.owner, place, alike=not call.name.startswith("rand"))


def made_new(call: Call) -> Found:
    """Follows `new_zeros` and its relatives."""
    call.only(call.first)
    sizes = sizes_of(call)
    if call.name == "new_full":
        sizes = call.get(1, "size")
        if isinstance(call.get(2, "fill_value"), Count):
            raise Mixing("new_full computes with the number of examples")
    return _alike(call, over_examples(call, sizes))


def numbered(call: Call) -> Found:
    """Follows `arange` over the examples, whose values are their positions."""
    counts = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Count)]
    call.only()
    if not counts:
        return None
    limits = [value for value in (*call.args, *(call.kwargs.get(key) for key in ("start", "end", "step")))]
    limits = [value for value in limits if value is not None]
    plain = len(limits) == 1 or (len(limits) == 2 and type(limits[0]) is int and limits[0] == 0)
    if not plain or len(counts) != 1 or counts[0].unit is not call.unit:
        raise Mixing("arange makes a constant that differs by the examples' position")
    place = Place(0, 1, counts[0].times)
    return Mark(call.owner, place, numbers=True, picks=Picks(place, None))


def made_like(call: Call) -> Found:
    """Follows constants of one value in the shape of data."""
    call.only(call.first)
    place = call.place(call.first)
    return None if place is None else Mark(call.owner, place, alike=True)
