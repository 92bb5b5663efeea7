"""Rules of functions that gather, scatter and sort rows along an axis."""

from typing import Any

import torch
from torch import Tensor

from adamas.engines.bookkeeping.counts import Count
from adamas.engines.bookkeeping.places import FIRST, Place, Rows
from adamas.engines.bookkeeping.separation.axes import along, axes_of
from adamas.engines.bookkeeping.separation.call import Call, Found, Mark, Mixing, Picks
from adamas.engines.bookkeeping.separation.elementwise import broadcast
from adamas.engines.bookkeeping.separation.indexing import picks_own


def gathered(call: Call) -> Found:
    """Follows `gather` and `take_along_dim` along another axis than that of the examples."""
    x, dim, index = call.first, call.get(1, "dim"), call.get(2, "index", "indices")
    if call.name == "take_along_dim":
        index, dim = call.get(1, "indices"), call.get(2, "dim")
    if dim is None:
        raise Mixing(f"{call.name} without a dim is not followed")
    axis = axes_of(dim, x.dim())[0]
    place = broadcast(call, (x, index), x.dim())
    if place is not None and place.axis == axis:
        raise Mixing(f"{call.name} runs along the examples")
    if place is not None and x.shape[place.axis] != index.shape[place.axis] and call.name == "gather":
        raise Mixing("gather takes some of the examples out of the batch")
    return place


def index_select(call: Call) -> Found:
    """Follows rows that an index picks."""
    x, dim, index = call.first, call.get(1, "dim"), call.get(2, "index")
    axis = axes_of(dim, x.dim())[0]
    place, own = call.place(x), call.place(index)
    if place is None:
        mark = call.mark(index)
        if mark is not None and mark.numbers:
            raise Mixing("index_select by the position of the examples in the batch")
        return None if own is None else own.shifted(axis)
    if place.axis != axis:
        if own is not None:
            raise Mixing("index_select combines each example with others")
        return place
    if own is None or not picks_own(call, index, place):
        raise Mixing("index_select along the examples mixes them")
    return own.shifted(axis)


def index_add(call: Call) -> Found:
    """Follows `x.index_add(dim, index, source)`, and `index_copy`."""
    x, dim, index, source = call.first, call.get(1, "dim"), call.get(2, "index"), call.get(3, "source")
    axis = axes_of(dim, x.dim())[0]
    place, own = call.place(x), call.place(source)
    if place is None and own is None and call.place(index) is None:
        return None
    if place is None or place.axis != axis:
        if call.place(index) is not None:
            raise Mixing(f"{call.name} combines each example with others")
        found = own if place is None else place
        assert found is not None
        if found.axis == axis or (own is not None and own != found):
            raise Mixing(f"{call.name} combines each example with others")
        for t in (x, source):
            if call.place(t) is None:
                call.constant(t, found.axis, found)
        return found
    rows = call.place(index)
    if rows is None or not picks_own(call, index, place):
        raise Mixing(f"{call.name} along the examples mixes them")
    if own is None or own != rows.shifted(axis):
        raise Mixing(f"{call.name} adds rows to other examples' rows")
    return place


def index_filled(call: Call) -> Found:
    """Follows `index_fill` along another axis than that of the examples."""
    x, dim, index, value = call.first, call.get(1, "dim"), call.get(2, "index"), call.get(3, "value")
    if call.place(index) is not None or call.place(value) is not None:
        raise Mixing("index_fill combines each example with others")
    return along(call, x, dim)


def scatter(call: Call) -> Found:
    """Follows `scatter` and its relatives."""
    x, dim, index = call.first, call.get(1, "dim"), call.get(2, "index")
    source = call.get(3, "src", "value")
    if isinstance(source, Count):
        raise Mixing(f"{call.name} computes with the number of examples")
    axis = axes_of(dim, x.dim())[0]
    mark = call.mark(index)
    if x.dim() == 1 and mark is not None and mark.picks is not None and isinstance(source, Tensor):
        written = call.mark(source)
        inverse = _inverse(mark.picks, call) if call.name in ("scatter", "scatter_") else None
        plain = written is not None and written.place == FIRST and written.picks == Picks(FIRST, None)
        if inverse is not None and plain and len(call.args) + len(call.kwargs) == 4:
            numbers = torch.arange(call.n, device=index.device)
            if x.shape == index.shape == numbers.shape and torch.equal(source.to(numbers.dtype), numbers):
                return inverse  # the places of a permutation: it is undone
    rows = _scatter_rows(call, x, index, source, axis)
    if rows is not None:
        return rows
    tensors = [x, index, *([source] if isinstance(source, Tensor) else [])]
    place = broadcast(call, tensors, x.dim())
    if place is None:
        return None
    if place.axis == axis:
        raise Mixing(f"{call.name} runs along the examples")
    if any(t.shape[place.axis] != x.shape[place.axis] for t in tensors):
        raise Mixing(f"{call.name} writes to some of the examples")
    return place


def _scatter_rows(call: Call, x: Tensor, index: Tensor, source: Any, axis: int) -> Place | None:
    """Follows a scatter along the examples that writes each row to a row of its own example."""
    place, own = call.place(x), call.place(index)
    if place is None or own is None or place.axis != axis or own.axis != axis:
        return None
    if isinstance(source, Tensor) and call.place(source) != own:
        return None
    return place if picks_own(call, index, place) else None


def ordered(call: Call) -> Found:
    """Follows sorting; one along the examples gives a permutation, which is followed."""
    x = call.first
    place = call.place(x)
    dim = call.get(1, "dim", default=-1)
    if isinstance(dim, bool):  # sort(x, descending)
        dim = -1
    if place is None or x.dim() != 1 or axes_of(dim, 1) != [0] or not place.outer == place.inner == 1:
        return along(call, x, dim)
    indices = call.result if isinstance(call.result, Tensor) else call.result[1]
    mark = call.mark(x)
    owner = indices.detach() if place.rows is None else place.rows.owner[indices.detach()]
    if mark is not None and mark.picks is not None and call.name == "argsort":
        inverse = _inverse(mark.picks, call)
        if inverse is not None and torch.equal(owner, torch.arange(call.n, device=owner.device)):
            return inverse
    order = Rows(owner, call.n, chosen=place.rows is not None and place.rows.chosen)
    sorted_place = Place(0, 1, 1, order)
    picking = Mark(call.owner, sorted_place, picks=Picks(place, order), numbers=True)
    return picking if isinstance(call.result, Tensor) else [sorted_place, picking]


def _inverse(picks: Picks, call: Call) -> Mark | None:
    """Returns the mark of the permutation that undoes another one."""
    if picks.rows is None or picks.rows.chosen or picks.source != FIRST:
        return None
    return Mark(call.owner, FIRST, picks=Picks(Place(0, 1, 1, picks.rows), None), numbers=True)
