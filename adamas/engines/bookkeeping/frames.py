"""The record of a convolution over several images of each example, such as the frames of a film."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.records import CHUNKED, Record
from adamas.geometry import Value


class Framed(Record):
    """A convolution of `(n, frames, ci, *size)`, computed with one more axis and windows of one frame.

    Args:
        x: Inputs.
        e: Output gradients, `(n, frames, co, *out)`.
        shape: The weight's shape.
        settings: Stride, padding and dilation along the images' axes, and groups of channels.
    """

    def __init__(
        self,
        x: Tensor,
        e: Tensor,
        shape: Sequence[int],
        settings: tuple[list[int], list[int], list[int], int],
    ) -> None:
        self.x, self.e, self.shape, self._settings = x, e, tuple(shape), settings
        stride, padding, dilation, groups = settings
        self.n = x.shape[0]
        deep = (*self.shape[:2], 1, *self.shape[2:])
        films = (x.transpose(1, 2), e.transpose(1, 2))
        self._deep = Convolution(*films, deep, [1, *stride], [0, *padding], [1, *dilation], groups)

    def formula(self, per_coordinate: bool) -> str:
        return CHUNKED

    def tensors(self) -> Sequence[Tensor]:
        return (self.x, self.e)

    def materialize(self, rows: slice | Tensor) -> Tensor:
        return self._deep.materialize(rows).squeeze(3)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        self._deep.add_weighted_sum(weights, out.unsqueeze(2), fresh)

    @property
    def dtype(self) -> torch.dtype:
        return self.e.dtype

    def terms(self, s: Value) -> Tensor | None:
        return self._deep.terms(s.unsqueeze(2) if isinstance(s, Tensor) and s.dim() else s)

    def close_terms(self, s: Tensor) -> Tensor | None:
        return self._deep.close_terms(s.unsqueeze(2))

    def wide(self, rows: Tensor) -> "Framed":
        return Framed(self.x[rows].double(), self.e[rows].double(), self.shape, self._settings)

    def kept(self, rows: slice | Tensor) -> "Framed":
        return self.marked(Framed(self.x[rows], self.e[rows], self.shape, self._settings), rows)
