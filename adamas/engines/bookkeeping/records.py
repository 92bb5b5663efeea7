"""Records: the gradients of one use of a weight, one per example, in a form cheaper than themselves."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from adamas._numerics.sums import memory_order, squared_norms
from adamas.engines.bookkeeping.certificate import OF_NORM, Squares, unit
from adamas.geometry import Geometry, Value

# Numbers that a chunk of per-example gradients or of unfolded images may hold: 2 MB of float32 stay in
# the cache between the product that makes them and the norm that reads them.
CHUNK = 1 << 19


def chunk_length(size: int) -> int:
    """Returns the number of examples of `size` numbers in a chunk: the same number for each thread."""
    return torch.get_num_threads() * max(1, CHUNK // max(1, size))


CHUNKED = "per-example gradients in chunks"

R = TypeVar("R", bound="Record")


class Record(ABC):
    """The gradients of one weight, one per example, in a form that is cheaper than themselves.

    Attributes:
        n: Number of examples.
        whitened: Squared norms that were taken in the backward, in the geometry of this step; for a derived
            weight, those of the parameter's gradients.
        function: The function that used the weight.
        seconds: Time that they took.
        retaken: Examples whose terms nearly cancel, so that norm and sum use float64; None for none.
        most_kept: Per-example gradients that are made for their norms are kept for the sum if they take at
            most this many times the memory of the record; otherwise the sum is another product.
    """

    n: int
    whitened: Tensor | None = None
    function: str = ""
    seconds: float = 0.0
    retaken: Tensor | None = None
    most_kept: int = 1

    @abstractmethod
    def formula(self, per_coordinate: bool) -> str:
        """Describes how norms are taken, for a scale per coordinate or a single one."""

    @abstractmethod
    def tensors(self) -> Sequence[Tensor]:
        """Returns the tensors that the record holds."""

    @abstractmethod
    def materialize(self, rows: slice | Tensor) -> Tensor:
        """Computes the gradients of some examples: `(k, *shape)`."""

    def forget_windows(self) -> None:  # noqa: B027, since most records keep nothing
        """Frees memory that `materialize` keeps for the next chunk, and that the sum does not need."""

    @abstractmethod
    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        """Adds `sum_i weights[i] G_i` to `out`, or overwrites it if it is `fresh`.

        Weights and `out` have the type of the gradients.
        """

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the gradients."""

    @abstractmethod
    def kept(self, rows: slice | Tensor) -> "Record":
        """Returns the record of some examples only."""

    def marked(self, part: R, rows: slice | Tensor) -> R:
        """Marks the same examples as retaken in the record of some of them."""
        part.retaken = None if self.retaken is None else self.retaken[rows]
        return part

    def wide(self, rows: Tensor) -> "Record":
        """Returns the record of some examples, in float64 if it has such a form."""
        return self.kept(rows)

    def terms(self, s: Value) -> Tensor | None:
        """Bounds the sum of the lengths of the terms of `G_i`, divided by a scale, in float64.

        None if there is one term, or if their sum is in hand.
        """
        return None

    def close_terms(self, s: Tensor) -> Tensor | None:
        """Computes a closer, more costly bound for a scale per coordinate."""
        return self.terms(s)

    def squares(self) -> Squares | None:
        """Computes `|G_i|^2`, or None if materializing is as good."""
        return None

    def products(self, c: Tensor) -> Tensor | None:
        """Computes `<G_i, c>` in float64, or None if materializing is as good."""
        return None

    def product_error(self) -> float:
        """Bounds the rounding error of `products`, in units of the lengths."""
        return OF_NORM * unit(self.dtype)

    def scaled_squares(self, c: Tensor | None, s: Tensor, constant: float | None) -> Squares | None:
        """Computes `|(G_i - c)/s|^2` for a scale per coordinate, or None if materializing is as good.

        Args:
            c: The center.
            s: The scale.
            constant: `|c/s|^2`, if there is a center.
        """
        return None


class Dense(Record):
    """Gradients in hand, `(n, *shape)`: small ones, as of biases, and those that are needed anyway."""

    def __init__(self, gradients: Tensor, formula: str = "gradients in hand") -> None:
        self.gradients, self._formula = gradients, formula
        self.n = gradients.shape[0]
        self._squares: Tensor | None = None

    def materialize(self, rows: slice | Tensor) -> Tensor:
        return self.gradients[rows]

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        order = memory_order(self.gradients)
        gradients = self.gradients.permute(0, *order).reshape(self.n, out.numel())
        ordered = out.permute([axis - 1 for axis in order])
        if ordered.is_contiguous():
            ordered.view(-1).addmv_(gradients.t(), weights, beta=0 if fresh else 1)
        else:
            total = torch.mv(gradients.t(), weights).view(ordered.shape)
            ordered.copy_(total) if fresh else ordered.add_(total)

    @property
    def dtype(self) -> torch.dtype:
        return self.gradients.dtype

    def kept(self, rows: slice | Tensor) -> "Dense":
        return Dense(self.gradients[rows])

    def wide(self, rows: Tensor) -> "Dense":
        return Dense(self.gradients[rows].double())

    def squares(self) -> Squares:
        if self._squares is None:
            self._squares = squared_norms(self.gradients)
        return Squares(self._squares, None, None, self.dtype)

    def formula(self, per_coordinate: bool) -> str:
        return self._formula

    def tensors(self) -> Sequence[Tensor]:
        return (self.gradients,)


def materialized(records: list[Record], rows: slice | Tensor) -> Tensor:
    """Computes the gradients of some examples over several uses of a weight, `(k, *shape)`."""
    total = records[0].materialize(rows)
    for record in records[1:]:
        total = total + record.materialize(rows)
    return total


def terms_of(records: Sequence[Record], s: Value, *, close: bool = False) -> Tensor | None:
    """Bounds the terms of several records together; see `Record.terms`."""
    bounds = [
        r.close_terms(s) if close and isinstance(s, Tensor) and s.dim() else r.terms(s) for r in records
    ]
    each = [terms for terms in bounds if terms is not None]
    return torch.stack(each).sum(0) if each else None


def add_weighted_sum(records: list[Record], weights: Tensor, out: Tensor, *, fresh: bool) -> None:
    """Adds `sum_i weights[i] G_i` over some records of one weight to `out`, or overwrites it if `fresh`."""
    for record in records:
        rest = weights if record.retaken is None else weights.masked_fill(record.retaken, 0)
        _add(record, rest, out, fresh)
        fresh = False
        if record.retaken is not None:
            size = sum(t.numel() for t in record.tensors()) // max(1, record.n)
            for rows in torch.split(record.retaken.nonzero().squeeze(1), chunk_length(size)):
                _add(record.wide(rows), weights[rows], out, False)


def _add(record: Record, weights: Tensor, out: Tensor, fresh: bool) -> None:
    if record.dtype == out.dtype:
        record.add_weighted_sum(weights.to(out.dtype), out, fresh)
    else:
        part = torch.empty_like(out, dtype=record.dtype)
        record.add_weighted_sum(weights.to(part.dtype), part, True)
        out.copy_(part) if fresh else out.add_(part)


def in_memory_like(gradients: Tensor, p: Tensor, geometry: Geometry) -> Geometry:
    """Returns the geometry of one parameter, with the memory order of some gradients."""
    order = [axis - 1 for axis in memory_order(gradients)]
    if order == sorted(order):
        return geometry
    back = [order.index(axis) for axis in range(len(order))]

    def ordered(value: Value) -> Value:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        return value.permute(order).contiguous().permute(back)

    c = geometry.center_of(p)
    return Geometry(None if c is None else {p: ordered(c)}, {p: ordered(geometry.scale[p])})
