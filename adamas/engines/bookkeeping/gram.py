"""Computes squared norms of sums of outer products from Gram matrices of their factors, with error bounds."""

from collections.abc import Callable

import torch
from torch import Tensor

from adamas._numerics.sums import gram_sums
from adamas.engines.bookkeeping.certificate import Squares

# Vectors whose product is at least this share of the mean of their squared lengths may be equal. Then the
# rounding errors of their products are equal, too, and do not average out.
_ALIKE = 1 - 3e-5


def of_blocks(
    block: Callable[[slice, slice], tuple[Tensor, Tensor]], places: int, errors: tuple[float, float]
) -> Squares:
    """Computes `sum_{tt'} A_{tt'} E_{tt'}` for each example; by symmetry, 3/4 of the entries are enough.

    Args:
        block: Some rows and columns of both Gram matrices.
        places: Number of rows.
        errors: Bounds on the rounding errors of the entries of both, in units of the lengths.
    """
    whole = slice(0, places)
    if places < 64 or places % 2:
        return of_grams([(0, 0, *block(whole, whole))], places, errors)
    first, second = slice(0, places // 2), slice(places // 2, places)
    pairs = [(first, first), (second, second), (first, second)]
    blocks = [(rows.start, columns.start, *block(rows, columns)) for rows, columns in pairs]
    return of_grams(blocks, places, errors)


def of_grams(
    blocks: list[tuple[int, int, Tensor, Tensor]], places: int, errors: tuple[float, float]
) -> Squares:
    """Computes the same from blocks in hand: those on the diagonal, then those above it."""
    values, alike_a, alike_e, apart, terms, traces = gram_sums(blocks, places, _ALIKE)
    error_a, error_e = errors
    bound = (error_a + error_e) * apart
    bound.add_(alike_a.sub_(apart).abs_(), alpha=error_a).add_(alike_e.sub_(apart).abs_(), alpha=error_e)
    # Underflow leaves no trace in the values.
    dtype = blocks[0][2].dtype
    tiny = torch.finfo(dtype).tiny * places * 4096
    bound.add_(traces, alpha=tiny).add_(tiny)
    return Squares(values, bound, terms, dtype)
