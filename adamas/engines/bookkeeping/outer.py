r"""The record of a linear map.

With inputs :math:`a` and output gradients :math:`e` over :math:`T` places, an example's gradient is
:math:`G_i = \sum_t e_{it} a_{it}^T`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adamas._numerics.sums import row_products, squared_norms
from adamas.engines.bookkeeping.certificate import LEFT, Squares, lengths, of_products
from adamas.engines.bookkeeping.gram import of_blocks
from adamas.engines.bookkeeping.records import CHUNKED, Dense, Record, chunk_length
from adamas.geometry import Value

# Next to a longer vector, the other one times an example's weight may be subnormal: such an example is
# computed in float64.
_HUGE = 1e30**2


class Outer(Record):
    """A linear map: inputs `(n, T, p)` and output gradients `(n, T, d)`; the gradient is `(d, p)`.

    Args:
        a: Inputs.
        e: Output gradients.
        transposed: The weight is stored as `(p, d)`.
        bias: The record of the layer's bias, which may know `|e|^2` already.
    """

    # No more memory than inputs and output gradients: with few places, gradients are much larger.
    most_kept = 1

    def __init__(self, a: Tensor, e: Tensor, transposed: bool = False, bias: Dense | None = None) -> None:
        self.a, self.e, self.transposed, self.bias = a, e, transposed, bias
        self.n, self.places = a.shape[:2]

    def formula(self, per_coordinate: bool) -> str:
        if self.places == 1:
            return "two matrix products" if per_coordinate else "|input| |output gradient|"
        return "Gram matrices of the places" if self.gram_pays() and not per_coordinate else CHUNKED

    def tensors(self) -> Sequence[Tensor]:
        return (self.a, self.e)

    def gram_pays(self) -> bool:
        """Tells whether the Gram matrices over places are smaller than the weight: few places."""
        p, d = self.a.shape[2], self.e.shape[2]
        return self.places * (p + d) < p * d

    def materialize(self, rows: slice | Tensor) -> Tensor:
        left, right = (self.a, self.e) if self.transposed else (self.e, self.a)
        return torch.bmm(left[rows].transpose(1, 2), right[rows])

    def chunk(self) -> int:
        """Returns the number of examples whose gradients fit in the cache."""
        return chunk_length(self.a.shape[2] * self.e.shape[2])

    def empty(self, count: int, *, by_rows: bool) -> Tensor:
        """Allocates a buffer for the gradients of some examples."""
        shape = (self.a, self.e) if self.transposed else (self.e, self.a)
        return torch.empty((count, *(t.shape[2] for t in shape)), dtype=self.dtype, device=self.e.device)

    def materialize_into(self, out: Tensor, rows: slice) -> Tensor:
        """Writes the gradients of some examples into a buffer."""
        left, right = (self.a, self.e) if self.transposed else (self.e, self.a)
        return torch.bmm(left[rows].transpose(1, 2), right[rows], out=out)

    def add_weighted_sum(self, weights: Tensor, out: Tensor, fresh: bool) -> None:
        a, e = self.a, self.e
        if a.shape[2] < e.shape[2]:  # the smaller of the two is scaled
            a = a * weights.view(-1, 1, 1)
        else:
            e = e * weights.view(-1, 1, 1)
        left, right = (a, e) if self.transposed else (e, a)
        out.addmm_(left.flatten(0, 1).t(), right.flatten(0, 1), beta=0 if fresh else 1)

    @property
    def dtype(self) -> torch.dtype:
        return self.e.dtype

    def kept(self, rows: slice | Tensor) -> "Outer":
        return self.marked(Outer(self.a[rows], self.e[rows], self.transposed), rows)

    def wide(self, rows: Tensor) -> "Outer":
        return Outer(self.a[rows].double(), self.e[rows].double(), self.transposed)

    def terms(self, s: Value) -> Tensor | None:
        if self.places == 1:
            return None
        least = float(s.amin()) if isinstance(s, Tensor) else s
        return lengths(self.a).mul_(lengths(self.e)).div_(least)

    def close_terms(self, s: Tensor) -> Tensor | None:
        if self.places == 1:
            return None
        # sum_t |e_tr a_tc| <= |e_r| |a_c| over the places, for each coordinate.
        of_a, of_e = self.a.square().sum(1), self.e.square().sum(1)
        return self._weighted(of_e, of_a, s.pow(-2)).sqrt_()

    def _weighted(self, e: Tensor, a: Tensor, matrix: Tensor) -> Tensor:
        """Computes `sum_rc e_r a_c matrix_rc` for each row of the two."""
        return row_products(e @ (matrix.t() if self.transposed else matrix).to(e.dtype), a)

    def squares(self) -> Squares | None:
        if self.places == 1:
            of_a = squared_norms(self.a)
            of_e = squared_norms(self.e) if self.bias is None else self.bias.squares().values
            errors = None
            if max(float(of_a.max()), float(of_e.max())) > _HUGE:
                errors = torch.zeros_like(of_a).masked_fill_(torch.maximum(of_a, of_e) > _HUGE, math.inf)
            return Squares(of_a * of_e, errors, None, self.dtype)
        return self._of_grams() if self.gram_pays() else None

    def _of_grams(self) -> Squares:
        """Computes `<a a^T, e e^T>`, which is `|sum_t e_t a_t^T|^2`."""

        def block(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
            a, e = (torch.bmm(t[:, rows], t[:, columns].transpose(1, 2)) for t in (self.a, self.e))
            return a, e

        errors = [of_products(t.shape[2], self.dtype) for t in (self.a, self.e)]
        return of_blocks(block, self.places, (errors[0], errors[1]))

    def products(self, c: Tensor) -> Tensor:
        matrix = c if not self.transposed else c.t()
        return row_products(self.e @ matrix, self.a)

    def with_rows_scaled(self, factors: Tensor) -> "Outer":
        """Returns the record of the same gradients, each row times a factor."""
        return Outer(self.a, self.e * factors, self.transposed)

    def row_products(self, y: Tensor) -> Tensor:
        """Computes `sum_t e_t y_t` for each row: `(n, d)`, float64."""
        return (self.e * y).sum(1).double()

    def row_sums(self) -> Tensor:
        """Sums each row of the gradients: `(n, d)`, float64."""
        return self.row_products(self.a.sum(2, keepdim=True))

    def product_error(self) -> float:
        return of_products(self.e.shape[2], self.dtype)

    def scaled_squares(self, c: Tensor | None, s: Tensor, constant: float | None) -> Squares | None:
        if self.places != 1:
            return None
        a, e = self.a[:, 0], self.e[:, 0]
        matrix, error = s.pow(-2), self.product_error()
        values = self._weighted(e.square(), a.square(), matrix)
        if c is None or constant is None:  # nothing cancels
            return Squares(values.mul_(1 + max(0.0, error - LEFT)), None, None, self.dtype)
        squares = Squares(values, error * values, None, self.dtype)
        return squares.around(self._weighted(e, a, matrix.mul_(c)), constant, error, 1.0)
