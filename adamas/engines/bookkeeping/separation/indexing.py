"""Rules of `x[index]`, of writing to it, and of masks."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from adamas.engines.bookkeeping.counts import Count
from adamas.engines.bookkeeping.places import Place, Rows
from adamas.engines.bookkeeping.separation.call import CONSTANT, MARK, Call, Found, Mark, Mixing, Picks
from adamas.engines.bookkeeping.separation.elementwise import broadcast, elementwise


class _Index:
    """An index as Python gives it, axis by axis."""

    def __init__(self, call: Call, x: Tensor, index: Any) -> None:
        items = [self._item(item) for item in (index if isinstance(index, tuple) else (index,))]
        if sum(item is Ellipsis for item in items) > 1:
            raise Mixing("indexing by several ellipses is not followed")
        used = sum(self._width(item) for item in items)
        full = [slice(None)] * (x.dim() - used)
        if any(item is Ellipsis for item in items):
            at = next(i for i, item in enumerate(items) if item is Ellipsis)
            items[at : at + 1] = full
        else:
            items += full
        self.call, self.x = call, x
        self.by_axis: dict[int, Any] = {}  # what happens to each axis of x
        self.to: dict[int, int] = {}  # which axis of the result a sliced axis becomes
        self.tensors: list[tuple[int, Tensor]] = []  # index tensors by their first axis
        axis = to = 0
        first, last, apart = None, None, False
        for item in items:
            if item is None:
                to += 1
                continue
            if isinstance(item, slice):
                self.by_axis[axis], self.to[axis] = item, to
                axis, to = axis + 1, to + 1
                continue
            if isinstance(item, int):
                self.by_axis[axis] = item
                axis += 1
                continue
            self.by_axis[axis] = item
            self.tensors.append((axis, item))
            if first is None:
                first = to
            elif last != to:
                apart = True
            last = to
            axis += self._width(item)
        shape = _broadcast(self._picked(t) for _, t in self.tensors)
        self.dim = len(shape)
        self.at = 0 if apart else (first or 0)
        if self.tensors:
            mixed_with_numbers = any(isinstance(item, int) for item in items)
            if mixed_with_numbers and len(self.tensors) + len(self.to) < x.dim():
                raise Mixing("indexing by numbers and tensors together is not followed")
            self.to = {a: t + self.dim if apart or t >= self.at else t for a, t in self.to.items()}

    @staticmethod
    def _item(item: Any) -> Any:
        """Turns lists into tensors, and tensors of one number into numbers."""
        if item is None or item is Ellipsis or isinstance(item, slice):
            return item
        if isinstance(item, bool):
            raise Mixing("indexing by a truth value is not followed")
        if isinstance(item, int):
            return item
        if not isinstance(item, Tensor):
            if any(isinstance(value, Count | Tensor) for value in item):
                raise Mixing("indexing by a list of numbers of examples or of tensors is not followed")
            item = torch.as_tensor(item)
            item.__dict__[MARK] = CONSTANT
        if item.dim() == 0:
            if item.dtype in (torch.bool, torch.uint8):
                raise Mixing("indexing by a truth value is not followed")
            return int(item)
        return item

    @staticmethod
    def _width(item: Any) -> int:
        if item is None or item is Ellipsis:
            return 0
        if isinstance(item, Tensor) and item.dtype in (torch.bool, torch.uint8):
            return item.dim()
        return 1

    @staticmethod
    def _picked(t: Tensor) -> Sequence[int]:
        if t.dtype not in (torch.bool, torch.uint8):
            return t.shape
        return (int(t.sum()),)

    def place(self) -> Found:
        """Finds where the examples are in the picked part."""
        call, x = self.call, self.x
        place = call.place(x)
        data = [(axis, t) for axis, t in self.tensors if call.place(t) is not None]
        self.check_counts(place)
        if any(t.dtype in (torch.bool, torch.uint8) for _, t in self.tensors) and data:
            return self._masked(place)
        if place is None:
            if not data:
                return None
            self._check_numbers(place)
            found = broadcast(call, [t for _, t in self.tensors], self.dim)
            assert found is not None
            return found.shifted(self.at)
        item = self.by_axis.get(place.axis)
        if item is None:
            raise Mixing("indexing by a constant mask along the examples")
        self._check_numbers(place)
        own = call.mark(x)
        if own is not None and own.alike and not data and place.plain and self._fixed(item):
            return None  # the same for every example
        if isinstance(item, slice):
            if data:
                raise Mixing("indexing combines each example with others")
            kept = self._sliced(place, item)
            return kept._replace(axis=self.to[place.axis])
        if isinstance(item, int):
            raise Mixing("indexing takes one example out of the batch")
        found = broadcast(call, [t for _, t in self.tensors], self.dim)
        if found is None or not picks_own(call, item, place):
            raise Mixing("indexing along the examples mixes them")
        return found.shifted(self.at)

    def _check_numbers(self, place: Place | None) -> None:
        """Raises if positions of examples pick anything but their own rows."""
        for axis, t in self.tensors:
            mark = self.call.mark(t)
            if mark is not None and mark.numbers and (place is None or axis != place.axis):
                raise Mixing("indexing by the position of the examples in the batch")

    def _fixed(self, item: Any) -> bool:
        """Tells whether the part taken from equal rows has the same size in every batch of two or more."""
        if not isinstance(item, slice):
            return True
        start, stop = item.start or 0, item.stop
        if item.step not in (None, 1) or type(start) is not int or type(stop) is not int:
            return False
        self.call.unit.single_differs |= stop == 2
        return 0 <= start <= stop <= 2

    def check_counts(self, place: Place | None) -> None:
        """Raises if the number of examples is an index, other than in a slice of their own axis."""
        for axis, item in self.by_axis.items():
            elsewhere = place is None or axis != place.axis
            if isinstance(item, Count) or (elsewhere and isinstance(item, slice) and _counts(item)):
                raise Mixing("indexing computes with the number of examples")

    def _sliced(self, place: Place, item: slice) -> Place:
        length = self.x.shape[place.axis]
        start, stop, step = slice(*(_plain(v) for v in (item.start, item.stop, item.step))).indices(length)
        if (start, stop, step) == (0, length, 1):
            return place
        if step > 1 and place.inner % step == 0 and start < step and stop > length - step + start:
            return place._replace(inner=place.inner // step)
        size = place.length(self.call.n) * place.inner
        if step != 1 or start % size or stop % size or place.outer == 1:
            raise Mixing("indexing takes some of the examples out of the batch")
        return place._replace(outer=max(0, stop - start) // size)

    def _masked(self, place: Place | None) -> Found:
        """Follows rows that a mask chooses by the values of each example."""
        call = self.call
        if len(self.tensors) != 1:
            raise Mixing("indexing by a mask and other tensors is not followed")
        ((first, mask),) = self.tensors
        own = call.place(mask)
        if len(self.by_axis) != len(self.to) + 1 or any(isinstance(i, int) for i in self.by_axis.values()):
            raise Mixing("indexing by a mask and numbers is not followed")
        if place is None or own is None or place != own.shifted(first):
            raise Mixing("indexing by a mask combines each example with others")
        return Place(self.at, 1, 1, chosen_rows(call, mask, own))


def picks_own(call: Call, index: Tensor, place: Place) -> bool:
    """Tells, by the values of an index along the examples, whether each example picks its own rows."""
    mark = call.mark(index)
    if mark is None or mark.place is None:
        return False
    own = mark.place
    picked = index.detach() // place.inner % place.length(call.n)
    if place.rows is not None:
        picked = place.rows.owner[picked]
    rows = torch.arange(own.length(call.n), device=index.device) if own.rows is None else own.rows.owner
    rows = rows.view(1, -1, 1).expand(own.outer, -1, own.inner).reshape(-1)
    shape = [1] * index.dim()
    shape[own.axis] = len(rows)
    return bool((picked == rows.view(shape)).all())


def chosen_rows(call: Call, mask: Tensor, place: Place) -> Rows:
    """Returns the rows where a mask is true, in order; the same object if one mask is used twice."""
    mark = call.mark(mask)
    assert mark is not None
    if mark.numbers:
        raise Mixing(f"{call.name} chooses examples by their position in the batch")
    digit = mask.detach().nonzero()[:, place.axis] // place.inner % place.length(call.n)
    owner = digit if place.rows is None else place.rows.owner[digit]
    if mark.chosen is None or not torch.equal(mark.chosen.owner, owner):  # it may have been written to
        mark.chosen = Rows(owner, call.n, chosen=True)
    return mark.chosen


def _broadcast(shapes: Iterable[Sequence[int]]) -> Sequence[int]:
    shapes = list(shapes)
    return tuple(torch.broadcast_shapes(*shapes)) if shapes else ()  # type: ignore[no-untyped-call]


def _counts(item: slice) -> bool:
    return any(isinstance(value, Count) for value in (item.start, item.stop, item.step))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Count) else value


def getitem(call: Call) -> Found:
    """Follows `x[index]`."""
    return _Index(call, call.args[0], call.args[1]).place()


def setitem(call: Call) -> Found:
    """Follows `x[index] = value`: the value must belong to the examples that it is written to."""
    x, index, value = call.args
    picked = _Index(call, x, index)
    if isinstance(value, Count):
        raise Mixing("a number of examples is written into a tensor")
    own = call.place(value)
    place = call.place(x)
    if place is not None:
        found = picked.place()
        if not isinstance(found, Place):
            raise Mixing("writing to some of the examples")
        if not isinstance(value, Tensor):
            return place
        dim = picked.dim + len(picked.to) + sum(item is None for item in _items(index))
        if own is not None and own.shifted(dim - value.dim()) != found:
            raise Mixing("writing to an index combines each example with others")
        if own is None:
            call.constant(value, found.axis - dim + value.dim(), found)
        return place
    if own is None:
        picked.check_counts(None)
        if any(call.place(t) is not None for _, t in picked.tensors):
            raise Mixing("writing to a constant where the data says")
        return None
    if picked.tensors:
        raise Mixing("writing data into a constant by index tensors is not followed")
    dim = len(picked.to) + sum(item is None for item in _items(index))
    target = own.axis + dim - value.dim()
    axis = next((a for a, to in picked.to.items() if to == target), None)
    picked.check_counts(None if axis is None else own._replace(axis=axis))
    if axis is None or picked._sliced(own._replace(axis=axis), picked.by_axis[axis]) != own._replace(
        axis=axis
    ):
        raise Mixing("writing data into a part of a constant along the examples")
    call.constant(x, axis, own)
    return own._replace(axis=axis)


def _items(index: Any) -> Sequence[Any]:
    return index if isinstance(index, tuple) else (index,)


def nonzero(call: Call, as_tuple: bool | None = None) -> Found:
    """Follows the places where a mask is true."""
    mask = call.first
    place = call.place(mask)
    if place is None:
        return None
    rows = chosen_rows(call, mask, place)
    plain = Place(0, 1, 1, rows)
    picking = Mark(call.owner, plain, picks=Picks(place._replace(axis=0), rows), numbers=True)
    if call.kwargs.get("as_tuple", False) if as_tuple is None else as_tuple:
        return [picking if axis == place.axis else plain for axis in range(mask.dim())]
    return picking if mask.dim() == 1 else Mark(call.owner, plain, numbers=True)


def masked_select(call: Call) -> Found:
    """Follows values that a mask of the same shape chooses."""
    x, mask = call.first, call.get(1, "mask")
    place = broadcast(call, (x, mask), max(x.dim(), mask.dim()))
    if place is None or call.place(mask) is None or mask.shape != x.shape:
        raise Mixing("masked_select is followed only with a mask of the data's own shape")
    return Place(0, 1, 1, chosen_rows(call, mask, place))


def chosen(call: Call) -> Found:
    """Follows `where`, with three arguments or with one."""
    if len(call.args) + len(call.kwargs) == 1:
        return nonzero(call, as_tuple=True)
    return elementwise(call)
