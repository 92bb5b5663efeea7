"""The record of an embedding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adamas._numerics.sums import row_products, squared_norms
from adamas.engines.bookkeeping.certificate import Squares
from adamas.engines.bookkeeping.records import Record
from adamas.geometry import Value


class Lookup(Record):
    """An embedding: indices `(n, T)` and output gradients `(n, T, d)`; the gradient is `(V, d)`, sparse."""

    def __init__(self, indices: Tensor, e: Tensor, rows: int, padding: int | None) -> None:
        if padding is not None:
            e = e * (indices != padding).unsqueeze(2)
        self.indices, self.e, self.rows = indices, e, rows
        self.n = indices.shape[0]
        self._touched: tuple[Tensor, Tensor, Tensor] | None = None
        self._inverse: Tensor | None = None

    def formula(self, per_coordinate: bool) -> str:
        return "sums over the touched rows"

    def tensors(self) -> Sequence[Tensor]:
        return (self.indices, self.e)

    def touched(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns example, row and gradient of every row that an example touches, each once."""
        if self._touched is None:
            first = torch.arange(self.n, device=self.e.device).unsqueeze(1) * self.rows
            keys, inverse = torch.unique((first + self.indices).reshape(-1), return_inverse=True)
            total = torch.zeros((len(keys), self.e.shape[2]), dtype=self.e.dtype, device=self.e.device)
            total.index_add_(0, inverse, self.e.reshape(-1, self.e.shape[2]))
            self._inverse = inverse
            self._touched = (keys // self.rows, keys % self.rows, total)
        return self._touched

    def materialize(self, rows: slice | Tensor) -> Tensor:
        e, indices = self.e[rows], self.indices[rows]
        out = torch.zeros((e.shape[0], self.rows, e.shape[2]), dtype=e.dtype, device=e.device)
        return out.scatter_add_(1, indices.unsqueeze(2).expand_as(e), e)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        e = self.e * weights.view(-1, 1, 1)
        if fresh:
            out.zero_()
        out.index_add_(0, self.indices.reshape(-1), e.reshape(-1, e.shape[2]))

    @property
    def dtype(self) -> torch.dtype:
        return self.e.dtype

    def kept(self, rows: slice | Tensor) -> "Lookup":
        return self.marked(Lookup(self.indices[rows], self.e[rows], self.rows, None), rows)

    def wide(self, rows: Tensor) -> "Lookup":
        return Lookup(self.indices[rows], self.e[rows].double(), self.rows, None)

    def terms(self, s: Value) -> Tensor | None:
        example, row, _ = self.touched()
        assert self._inverse is not None
        if len(row) == len(self._inverse):  # a row that is touched once is not added up
            return None
        lengths = torch.linalg.vector_norm(self.e.reshape(-1, self.e.shape[2]), dim=1).double()
        sums = lengths.new_zeros(len(row)).index_add_(0, self._inverse, lengths)
        sums[torch.bincount(self._inverse, minlength=len(row)) == 1] = 0
        sums = sums / (s[row].amin(1) if isinstance(s, Tensor) and s.dim() else s)
        return self._per_example(example, sums.square()).sqrt_()  # different rows do not meet

    def squares(self) -> Squares:
        example, _, total = self.touched()
        return Squares(self._per_example(example, squared_norms(total)), None, self.terms(1.0), self.dtype)

    def products(self, c: Tensor) -> Tensor:
        example, row, total = self.touched()
        return self._per_example(example, row_products(total, c[row]))

    def scaled_squares(self, c: Tensor | None, s: Tensor, constant: float | None) -> Squares:
        example, row, total = self.touched()
        scale = s[row]
        if c is None or constant is None:
            values = self._per_example(example, squared_norms(total / scale))
            return Squares(values, None, self.terms(s), self.dtype)
        near = c[row] / scale
        # On the touched rows |(g - c)/s|^2 directly; everywhere else it is |c/s|^2, the same for all.
        here, before = squared_norms(total / scale - near), squared_norms(near)
        values = self._per_example(example, here - before) + constant
        errors = self.product_error() * (self._per_example(example, here + before) + constant)
        return Squares(values, errors, self.terms(s), self.dtype)

    def _per_example(self, example: Tensor, values: Tensor) -> Tensor:
        return torch.zeros(self.n, dtype=torch.float64, device=self.e.device).index_add_(0, example, values)
