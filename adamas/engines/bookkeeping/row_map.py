r"""Computes norms behind row-normalised weights without a vector-Jacobian product for each example."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adamas._numerics import sums_kernel
from adamas._numerics.sums import memory_order, row_sums
from adamas.engines.bookkeeping.certificate import OF_NORM, Squares, behind_jacobian, unit
from adamas.engines.bookkeeping.convolution import Convolution
from adamas.engines.bookkeeping.derived import scattered
from adamas.engines.bookkeeping.outer import Outer

# If the form leaves a smaller share of `alpha^2 |G|^2`, the three factors are not precise enough.
_CANCELLATION = 1e-2


class RowMap:
    r"""The Jacobian of a normalisation that treats each row of a weight alike.

    For a row with unit vector :math:`\hat t = t/|t|`, weight standardisation, normalisation to length 1 and
    scaling all have

    .. math:: J^T G = \alpha\,G_\perp + \alpha_1\,\bar g\,1 + \alpha_t\,(\hat t \cdot G)\,\hat t

    with the row's mean :math:`\bar g` and the rest :math:`G_\perp`. So with n numbers in a row,

    .. math:: |J^T G|^2 = \alpha^2 |G|^2 + (\alpha_1^2 - \alpha^2)\,n \bar g^2
              + (\alpha_t^2 - \alpha^2)(\hat t \cdot G)^2.

    The three factors are read off the Jacobian with one vector, and the form is checked with another, at
    every step.
    """

    def __init__(
        self, leaf: Tensor, weight: Tensor, length: Tensor, alpha: Tensor, one: Tensor, own: Tensor
    ) -> None:
        self.leaf, self._weight = leaf, weight
        self.alpha, self.one, self.own = alpha, one, own
        self._length = length  # of the weight's rows
        self._width = leaf.shape[1:].numel()
        # How much more of one direction than of the others there is in a product, at most.
        largest = torch.stack([alpha, one, own]).abs().amax(0) / alpha.abs()
        self._gain = float(largest.square().nan_to_num(1.0).max())
        self._keeps_mean = torch.equal(one, alpha)  # as the rest: no sums are needed
        self._in_order: Tensor | None = None  # the weight, in memory as gradients in hand are

    @classmethod
    def fit(cls, t: Tensor, leaves: Sequence[Tensor]) -> "RowMap | None":
        """Fits the map of a weight derived from some parameters; None if its Jacobian has another form."""
        if len(leaves) != 1 or leaves[0].shape != t.shape or t.dim() < 2 or not t.numel():
            return None
        (leaf,) = leaves
        if t.shape[1:].numel() < 4:  # too few directions to tell the three factors apart
            return None
        with torch.no_grad():
            rows = _Rows(t.detach().flatten(1))
            # The factors come from one vector, whose rows are of one size, so that none drowns in rounding.
            noise = scattered(rows.height + rows.width, rows.values)
            first = _Vector(rows, (1.5 + noise[: rows.height]) / 2, noise[rows.height :], 1.0, 1.0)
            alpha, one, own = first.factors(_pulled(t, leaf, first.values()))
            # The form is checked on another one: rows that act on one another show in it.
            noise = scattered(3 * rows.height + rows.width, rows.values)
            sizes, mean, along = noise[: 3 * rows.height].view(3, rows.height)
            direction = noise[3 * rows.height :]
            direction = direction + direction.sign()  # none is small, so that each column shows
            second = _Vector(rows, 1.5 + sizes / 2, direction, mean / 4, along / 4)
            fits = second.becomes(_pulled(t, leaf, second.values()), alpha, one, own)
        if not fits:  # also where something is not finite
            return None
        return cls(leaf, t.detach(), rows.length[:, 0], alpha[:, 0], one[:, 0], own[:, 0])

    def row_sums(self, gradients: Tensor) -> Tensor:
        """Computes the `sums` of `of_rows` from gradients `(k, *shape)` whose rows are contiguous."""
        k, height = gradients.shape[:2]
        order = memory_order(gradients)
        if self._in_order is None:
            weight = self._weight.permute([axis - 1 for axis in order])
            self._in_order = weight.reshape(height, self._width)
        flat = gradients.permute(0, *order).reshape(k * height, self._width)
        return row_sums(flat, self._in_order).view(3, k, height)

    def of_rows(self, sums: Tensor, terms: Tensor | None) -> Tensor:
        """Computes `|J^T G_i|^2` in float64, never below the true value; NaN where it would lose digits.

        Args:
            sums: `|G|^2`, `t . G` and the sum for each row of each example's gradient, `(3, n, rows)`.
            terms: See `Squares`, of the gradients.
        """
        squares, along, total = sums
        terms = None if terms is None else terms * float(self.alpha.abs().max())
        scaled = Squares(squares @ self.alpha.square(), None, terms, self._weight.dtype)
        return self._combined(scaled, along, None if self._keeps_mean else total)

    def of_record(self, record: Outer | Convolution, output: Tensor) -> Tensor | None:
        """Computes the same for a record whose squares have a cheap form.

        Args:
            record: The use of the derived weight.
            output: The layer's output without its bias, of the record's output gradient's shape: as
                `y = t x`, its product with the output gradient is `t . G`.
        """
        squares = record.with_rows_scaled(self.alpha.to(record.dtype)).squares()
        if squares is None:
            return None
        sums = None if self._keeps_mean else record.row_sums()
        return self._combined(squares, record.row_products(output), sums)

    def _combined(self, squares: Squares, along: Tensor, sums: Tensor | None) -> Tensor:
        """Computes the norms from `alpha^2 |G|^2` over all rows, and `t . G` and the sum of each row."""
        others, total = self.alpha.square(), squares.values
        before = total * self._gain
        errors, terms = OF_NORM * unit(squares.dtype) * before, squares.terms
        values = total + (along / self._length).square() @ (self.own.square() - others)
        if sums is not None:
            values += sums.square() @ (self.one.square() - others) / self._width
        if squares.errors is not None:
            errors = errors + squares.errors
        terms = None if terms is None else terms * math.sqrt(self._gain)
        bounded = Squares(values, errors, terms, squares.dtype)
        result, again = bounded.certified(self._weight.numel(), 0.0)
        result = behind_jacobian(result, before, squares.dtype)
        lost = values < _CANCELLATION * total
        return result.masked_fill_(lost if again is None else lost | again, math.nan)


class _Rows:
    """The rows of a weight, with their reused statistics as columns in float64."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.height, self.width = values.shape
        self.length = torch.linalg.vector_norm(values, dim=1, keepdim=True).double()
        self.sums = _sums(values)
        self.tolerance = 64 * torch.finfo(values.dtype).eps
        # Of single numbers. The factors are less well known from few of them, and no better than to 1e-12.
        self.of_numbers = max(self.tolerance, 1e-12) * (1 + 16 / self.width)
        # Rows of mean 0 have the mean as a direction of its own.
        self.centered = bool((self.sums.abs() < self.tolerance * self.width * self.length).all())


class _Vector:
    """A vector `sizes * direction + mean + along * sqrt(width) * unit row` for each row, and its products."""

    def __init__(
        self, rows: _Rows, sizes: Tensor, direction: Tensor, mean: Tensor | float, along: Tensor | float
    ) -> None:
        ones = torch.ones_like(rows.length)
        self.rows, self.direction = rows, direction
        self.size = sizes.double().unsqueeze(1)
        self.mean = (mean.double().unsqueeze(1) if isinstance(mean, Tensor) else mean * ones) * rows.centered
        self.own = along.double().unsqueeze(1) if isinstance(along, Tensor) else along * ones
        self.own = self.own * math.sqrt(rows.width) / rows.length
        self.with_row = (rows.values @ direction).double().unsqueeze(1)
        # Its part along the row, and its sum.
        self.along = (
            self.size * self.with_row + self.mean * rows.sums
        ) / rows.length + self.own * rows.length
        self.sum = self.size * direction.double().sum() + self.mean * rows.width + self.own * rows.sums

    def values(self) -> Tensor:
        """Returns the vector itself."""
        return self._made(self.size, self.mean, self.own)

    def length(self) -> Tensor:
        """Returns the length of each row."""
        return self._product(
            self.size * self.direction.double().square().sum()
            + self.mean * self.direction.double().sum()
            + self.own * self.with_row,
            self.sum,
            self.along * self.rows.length,
        ).sqrt()

    def becomes(self, g: Tensor, alpha: Tensor, one: Tensor, own: Tensor) -> bool:
        """Tells whether the map with these factors takes the vector to `g`.

        Each number is compared by itself: one that is off would hide among many in the length of a row. It
        may be off by the tolerance of the parts that it is made of.
        """
        rows = self.rows
        mean = alpha * self.mean + (one - alpha) * self.sum / rows.width
        row = alpha * self.own + (own - alpha) * self.along / rows.length
        far = rows.of_numbers * torch.cat([alpha, one, own], 1).abs().amax(1, keepdim=True)
        least = far * self.length() / math.sqrt(rows.width)
        slope = far * (self.own.abs() + 2 * self.along.abs() / rows.length)
        columns = [mean, alpha * self.size, row, least, slope]
        if sums_kernel.fits(g, rows.values, self.direction):
            packed = torch.cat(columns, 1).t().to(g.dtype).contiguous()
            return sums_kernel.all_near(g, rows.values, self.direction, packed)
        mean, size, row, least, slope = (column.to(rows.values) for column in columns)
        apart = self._made(size, mean, row).sub_(g).abs_()
        return bool((apart <= torch.addcmul(least, rows.values.abs(), slope)).all())

    def factors(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the factors of the map that takes the vector to `g`: for the rest, the mean and the row."""
        rows = self.rows
        with_row, sums = _sums(g * rows.values), _sums(g)
        along = with_row / rows.length
        with_direction = (g @ self.direction).double().unsqueeze(1)
        beside = self._product(with_direction, sums, with_row) - along * self.along
        size = self.length().square() - self.along.square()
        if rows.centered:
            beside, size = beside - sums * self.sum / rows.width, size - self.sum.square() / rows.width
        alpha = beside / size
        return alpha, (sums / self.sum if rows.centered else alpha), along / self.along

    def _product(self, with_direction: Tensor, total: Tensor, with_row: Tensor) -> Tensor:
        """Returns the product with another vector, from that vector's products with the parts."""
        return self.size * with_direction + self.mean * total + self.own * with_row

    def _made(self, size: Tensor, mean: Tensor, row: Tensor) -> Tensor:
        like = self.rows.values
        made = torch.addcmul(mean.to(like), size.to(like), self.direction)
        return made.addcmul_(like, row.to(like))


def _pulled(t: Tensor, leaf: Tensor, vector: Tensor) -> Tensor:
    g: Tensor = torch.autograd.grad(t, leaf, vector.view_as(t), retain_graph=True)[0]
    return g.flatten(1)


def _sums(values: Tensor) -> Tensor:
    return values.sum(1, keepdim=True).double()
