"""Finds how the rows of a batch are padded: value, side, and lengths without padding."""

from collections.abc import Sequence
from operator import sub
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from adamas._guards.kept_values import same_bits
from adamas._nests import map_tensors, named_tensors


class Rows(NamedTuple):
    """The rows of a part of a batch that is padded.

    Attributes:
        shapes: How large each row is without padding.
        left: Whether the padding is at the starts of axes.
    """

    shapes: list[torch.Size]
    left: bool


Sizes = dict[str, Rows]
"""The padded parts of a batch, by name."""


class Padding:
    """The padding of one part of the batches, as far as it is known: one value, and one side."""

    def __init__(self) -> None:
        self._value: Tensor | None = None
        self.left: bool | None = None
        """Whether the padding is at the starts of axes; None if it is not known yet."""

    def agrees_on_all(self, a: Tensor, parts: list[Tensor]) -> bool:
        """Tells at once whether all rows are those of the examples alone, stacked or padded at the ends."""
        if any(b.dtype != a.dtype or b.dim() != a.dim() or len(b) != 1 for b in parts):
            return False
        shapes = {b.shape for b in parts}
        if len(shapes) == 1 and next(iter(shapes))[1:] == a.shape[1:]:
            return same_bits(a, torch.cat(parts))
        if self._value is None or self.left is not False or len({shape[2:] for shape in shapes}) > 1:
            return False
        rows = pad_sequence([b[0] for b in parts], batch_first=True, padding_value=self._value.item())
        return same_bits(a, rows)

    def agrees(self, a: Tensor, b: Tensor) -> bool:
        """Tells whether two batches of one row are equal where they overlap, and padding elsewhere."""
        if a.dtype != b.dtype or a.dim() != b.dim() or len(a) != len(b):
            return False
        shape = [min(lengths) for lengths in zip(a.shape, b.shape, strict=True)]
        sides = [
            left for left in (False, True) if self.left in (None, left) and self._fits(a, b, shape, left)
        ]
        if len(sides) == 1:
            self.left = sides[0]
        return bool(sides)

    def _fits(self, a: Tensor, b: Tensor, shape: list[int], left: bool) -> bool:
        overlap = _last if left else _first
        mine, theirs = overlap(a, shape), overlap(b, shape)
        rest = torch.cat([a[_outside(a, mine)], b[_outside(b, theirs)]])
        if not same_bits(a[mine], b[theirs]):
            return False
        if len(rest):
            value = rest[0] if self._value is None else self._value
            if not same_bits(rest, value.expand_as(rest)):
                return False
            self._value = value
        return True


def _first(x: Tensor, shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, length) for length in shape)


def _last(x: Tensor, shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(full - length, full) for full, length in zip(x.shape, shape, strict=True))


def _outside(x: Tensor, kept: tuple[slice, ...]) -> Tensor:
    outside = torch.ones(x.shape, dtype=torch.bool)
    outside[kept] = False
    return outside


def padded_and_alone(batch: Any, sizes: Sizes, most: int) -> tuple[Any, list[Any]] | None:
    """Returns some rows of a padded batch, and each alone without its padding; None if there are none.

    Args:
        batch: The batch.
        sizes: The lengths of its rows without padding.
        most: The largest number of rows: the one with the most padding, and others over the whole range.
    """
    far = padding_of(batch, sizes)
    rows = sorted((i for i, length in enumerate(far) if length), key=far.__getitem__)
    if not rows:
        return None
    chosen = [rows[-1 - i * (len(rows) - 1) // max(1, most - 1)] for i in range(min(most, len(rows)))]
    names = [name for name, _ in named_tensors(batch)]
    alone = []
    for i in chosen:
        remaining = iter(names)

        def trimmed(x: Tensor, i: int = i, remaining: Any = remaining) -> Tensor:
            name = next(remaining)
            if name not in sizes:
                return x[i : i + 1]
            shapes, left = sizes[name]
            return x[i : i + 1][(slice(None), *(_last if left else _first)(x[i], shapes[i]))]

        alone.append(map_tensors(trimmed, batch))
    return map_tensors(lambda x: x[chosen], batch), alone


def padding_of(batch: Any, sizes: Sizes) -> list[int]:
    """Returns by how many places each row of a batch is padded, along the axis that is padded most."""
    tensors = dict(named_tensors(batch))
    parts = ([_pads(tensors[name], shape) for shape in rows.shapes] for name, rows in sizes.items())
    return [max(lengths) for lengths in zip(*parts, strict=True)]


def _pads(x: Tensor, shape: torch.Size) -> int:
    return max(map(sub, x.shape[1:], shape), default=0)


def _is_left(x: Tensor, shapes: list[torch.Size]) -> bool:
    """Tells whether rows are padded at the starts of their axes: their ends are not one value."""
    rest = torch.cat([row[_outside(row, _first(row, shape))] for row, shape in zip(x, shapes, strict=True)])
    return bool(len(rest)) and not same_bits(rest, rest[:1].expand_as(rest))


def sizes_of(together: Any, alone: list[dict[str, Any]], pads: dict[str, Padding]) -> Sizes:
    """Finds the padded parts, and their side where it is not known."""
    sizes: Sizes = {}
    for name, x in named_tensors(together):
        full = x.shape[1:]
        shapes = [leaves[name].shape[1:] for leaves in alone]
        if any(shape != full for shape in shapes) and all(len(shape) == len(full) for shape in shapes):
            shapes = [torch.Size(map(min, shape, full)) for shape in shapes]
            known = pads[name].left if name in pads else None
            sizes[name] = Rows(shapes, _is_left(x, shapes) if known is None else known)
    return sizes
