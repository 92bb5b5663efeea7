"""Describes where the examples of a batch are in a tensor, and sorts tensors by example.

An axis that holds the examples has `outer * n * inner` entries: the example is the middle digit of the
index. A plain batch axis has `outer = inner = 1`; heads, windows or frames that are folded into it after the
examples are `inner`; time that is folded into it before them is `outer`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from adamas.engines.bookkeeping.counts import Unit


class Rows(Unit):
    """The example that each row belongs to, where rows differ from the examples in order or number.

    Args:
        owner: The example of each row.
        n: Number of examples.
        chosen: Whether values of the batch decided how many there are; otherwise it is a permutation.
    """

    def __init__(self, owner: Tensor, n: int, *, chosen: bool) -> None:
        super().__init__(owner.shape[0], chosen=chosen)
        self.owner, self.n = owner, n
        self._slots: Tensor | None = None

    def gathered(self, t: Tensor) -> Tensor:
        """Sorts rows by example: `(n, most, ...)`, with rows of zeros for examples that have fewer."""
        if self._slots is None:
            order = torch.argsort(self.owner, stable=True)
            counts = torch.bincount(self.owner, minlength=self.n)
            first = counts.cumsum(0) - counts
            rank = torch.arange(self.length, device=t.device) - first[self.owner[order]]
            most = int(counts.max()) if self.length else 0
            slots = torch.full((self.n, most), self.length, device=t.device)
            slots[self.owner[order], rank] = order
            self._slots = slots
        padded = torch.cat([t, t.new_zeros((1, *t.shape[1:]))])
        return padded[self._slots]


class Place(NamedTuple):
    """The example axis of a tensor.

    Attributes:
        axis: The axis, counted from the first.
        outer: Entries that are folded into it before the examples.
        inner: Entries that are folded into it after the examples.
        rows: What the middle digit counts, if not every example once in the batch's order.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    rows: Rows | None = None

    @property
    def plain(self) -> bool:
        """Whether the axis holds every example once, in order, and nothing else."""
        return self.outer == 1 and self.inner == 1 and self.rows is None

    def length(self, n: int) -> int:
        """Returns the range of the middle digit, for n examples."""
        return n if self.rows is None else self.rows.length

    def shifted(self, by: int) -> "Place":
        """Returns the same with the axis elsewhere."""
        return self._replace(axis=self.axis + by) if by else self


FIRST = Place(0)


def viewed(place: Place, old: Sequence[int], new: Sequence[int], n: int) -> Place | None:
    """Finds the examples after a reshape, or None if they are on no axis of their own."""
    length = place.length(n)
    if not length:
        return next((place._replace(axis=d) for d, size in enumerate(new) if size == 0), None)
    before = math.prod(old[: place.axis]) * place.outer
    after = place.inner * math.prod(old[place.axis + 1 :])
    left = 1
    for axis, size in enumerate(new):
        if left and before % left == 0:
            outer = before // left
            inner, rest = divmod(size, outer * length)
            if rest == 0 and inner * math.prod(new[axis + 1 :]) == after:
                return Place(axis, outer, inner, place.rows)
        left *= size
    return None


def split(t: Tensor, place: Place, n: int) -> Tensor:
    """Unfolds the example axis: `outer`, examples and `inner` become axes of their own."""
    if place.outer == 1 and place.inner == 1:
        return t.unsqueeze(place.axis).unsqueeze(place.axis + 2)
    parts: Tensor = t.unflatten(  # type: ignore[no-untyped-call]
        place.axis, (place.outer, place.length(n), place.inner)
    )
    return parts


def by_example(t: Tensor, place: Place, n: int, trailing: int) -> Tensor:
    """Sorts by example: `(n, places, *features)`, the last `trailing` axes being features."""
    features = t.shape[t.dim() - trailing :]
    if place.axis or place.outer > 1:
        t = split(t, place, n).movedim(place.axis + 1, 0)
    if place.rows is not None:
        length = place.rows.length
        if not length:
            return t.new_zeros((n, 1, *features))
        t = place.rows.gathered(t.reshape(length, -1, *features))
    return t.reshape(n, math.prod(t.shape[: t.dim() - trailing]) // n, *features)


def equal_along(t: Tensor, axis: int, place: Place, n: int) -> bool:
    """Tells whether a constant has the same values for every example, on an axis that holds them."""
    if t.shape[axis] != place.outer * place.length(n) * place.inner or not t.numel():
        return t.shape[axis] == 1 or not t.numel()
    parts = split(t, place._replace(axis=axis), n)
    first = parts.narrow(axis + 1, 0, 1)
    same = parts == first
    if t.is_floating_point() or t.is_complex():
        same |= (parts != parts) & (first != first)
    return bool(same.all())
