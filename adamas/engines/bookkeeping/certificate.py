r"""Bounds on the rounding error of a norm, and the choice of examples to compute again in float64.

A norm that is too low lets an example into the sum with too large a weight. Closed forms expand a square into
terms that may cancel: over :math:`T` places, :math:`|G|^2 = \sum_{tt'} \langle a_t, a_{t'} \rangle
\langle e_t, e_{t'} \rangle` loses all digits if the inputs share a large part and the output gradients sum
to little. Terms that cancel in the norm cancel in the sum as well, but their rounding errors stay.

The bounds assume that rounding errors are independent unless the numbers are equal: worst-case bounds, which
no data comes near, would send every example to float64. Their constants are several times the errors that
were measured; `docs/proof.md` has the numbers.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from adamas._numerics.sums import accumulation_dtype

# A relative error of a square up to this is added to it: the norm is high by at most half of that.
_WIDEST = 2e-5
# A relative error below this is ignored: the norm may be low by half of it.
LEFT = 1e-6
# As the first, for the rounding error of an example's part of the sum, relative to the norm.
_WIDEST_SUM = 5e-4
# Examples with a smaller whitened norm are not computed again: clipping leaves them as they are.
_HARMLESS = 1e-6

# Rounding error of a product of two vectors, in units of |x| |y|: sums are sequential within a block of this
# many terms. Vectors of equal numbers have by far the largest error: each step rounds in the same direction.
_BLOCK = 192
_PER_TERM = 0.2
_LEAST = 4
# Those of sums over places, in units of the sum of the terms' lengths: over the whole matrix, and along it.
_OF_SUM = 32
_ALONG = 10
# Those of a norm that is computed directly.
OF_NORM = 8
# Where a Jacobian leaves less than this share of a square, rounding errors of products with it count; the
# example's part of a sum is then made so small that the norm is this many roundoffs of that before it.
_LITTLE = 1e-2
_GUARD = 65536


def unit(dtype: torch.dtype) -> float:
    """Returns the unit roundoff of matrix products of a type."""
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return 2.0**-9  # bfloat16, and TF32 is below it
    return torch.finfo(dtype).eps / 2


def of_products(length: int, dtype: torch.dtype) -> float:
    """Bounds the rounding error of a product of two vectors, in units of their lengths."""
    return (_LEAST + _PER_TERM * min(length, _BLOCK)) * unit(dtype)


def lengths(rows: Tensor) -> Tensor:
    """Returns the norm of each row, precise enough for a bound; infinite on overflow."""
    result: Tensor = torch.linalg.vector_norm(rows, dim=tuple(range(1, rows.dim()))).double()
    return result


class Squares(NamedTuple):
    """Squared norms, and the quantities that bound their rounding errors, `(n,)` in float64.

    Attributes:
        values: The squared norms, as computed.
        errors: A bound on their rounding errors; None for that of a direct computation.
        terms: A bound on the sum of the lengths of the terms that an example adds to a sum in the number
            type of the record; None if there is one term, or if the terms' sum is in hand.
        dtype: The number type.
    """

    values: Tensor
    errors: Tensor | None
    terms: Tensor | None
    dtype: torch.dtype

    def part(self, rows: Tensor, terms: Tensor | None) -> "Squares":
        """Returns the squares of some examples, with other terms."""
        return Squares(
            self.values[rows], None if self.errors is None else self.errors[rows], terms, self.dtype
        )

    def scaled(self, s: float) -> "Squares":
        """Returns the squares of the vectors divided by a number."""
        if s == 1.0:
            return self
        errors = None if self.errors is None else self.errors / s / s
        return Squares(
            self.values / s / s, errors, None if self.terms is None else self.terms / s, self.dtype
        )

    def around(self, products: Tensor, constant: float, of_products: float, s: float) -> "Squares":
        """Returns the squares of the differences to a center, by expansion.

        Args:
            products: Inner products with the center.
            constant: `|c/s|^2`.
            of_products: The rounding error of such a product, in units of the lengths.
            s: The scale, by which the squares have been divided and the products have not.
        """
        own = OF_NORM * unit(self.dtype)
        errors = own * self.values if self.errors is None else self.errors
        # The product's terms are as independent as those of the square.
        errors = errors + 2 * (of_products * constant * errors).sqrt() + own * constant
        return Squares(self.values - 2 * products / s / s + constant, errors, self.terms, self.dtype)

    def certified(self, size: int, harmless: float = _HARMLESS) -> tuple[Tensor, Tensor | None]:
        """Raises squares to bounds on the true ones and on what a sum gets; tells whom to compute again.

        Args:
            size: Number of coordinates of a gradient.
            harmless: Examples with a norm below this are not computed again.
        """
        if self.errors is None and self.terms is None:
            return self.values, None
        least = self.values.clamp(min=0)
        high, exact = least, None
        if self.errors is not None:
            high = torch.maximum(high, torch.add(self.errors, high, alpha=1 - LEFT))
            exact = self.errors <= _WIDEST * self.values
        if self.terms is not None:
            step = unit(self.dtype) * self.terms
            # Nearly orthogonal to the gradient, as there are many coordinates.
            high = torch.addcmul(high, step, step, value=2 * _OF_SUM**2).sqrt_()
            high = high.add_(step, alpha=min(2.0, _ALONG / math.sqrt(max(1, size)))).square_()
            small = step <= least.sqrt_().mul_(_WIDEST_SUM / _OF_SUM)
            exact = small if exact is None else exact.logical_and_(small)
        assert exact is not None
        settled = exact.logical_or_(high <= harmless**2)
        return high, None if bool(settled.all()) else ~settled  # also what is not a number


def behind_jacobian(squares: Tensor, before: Tensor, dtype: torch.dtype) -> Tensor:
    """Raises squares of Jacobian products until the rounding of such a product with a sum is small.

    Args:
        squares: `|J^T G|^2`.
        before: `|J|^2 |G|^2`.
        dtype: The number type of the product.
    """
    lost = (before - squares / _LITTLE).clamp_(min=0)
    return squares + (_GUARD * unit(accumulation_dtype(dtype))) ** 2 * lost
