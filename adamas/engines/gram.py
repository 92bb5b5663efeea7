"""Squared norms of sums of outer products from the Gram matrices of their factors, with a certificate."""

from collections.abc import Callable

import torch
from torch import Tensor

from adamas._sums import gram_sums
from adamas.engines.certificate import Squares

# Vectors whose product is at least this share of the mean of their squared lengths may be the same: then the
# rounding errors of their products are, and do not average out.
_ALIKE = 1 - 3e-5


def of_blocks(
    block: Callable[[slice, slice], tuple[Tensor, Tensor]], places: int, errors: tuple[float, float]
) -> Squares:
    """`sum_{tt'} A_{tt'} E_{tt'}` for each example; symmetric, so that 3/4 of many places are enough.

    Args:
        block: Some rows and columns of both Gram matrices.
        places: Number of rows.
        errors: Bounds on the rounding errors of the entries of both, in units of the lengths.
    """
    whole = slice(0, places)
    if places < 64 or places % 2:
        return of_grams([(whole, whole, *block(whole, whole))], errors)
    first, second = slice(0, places // 2), slice(places // 2, places)
    pairs = [(first, first), (second, second), (first, second)]
    return of_grams([(rows, columns, *block(rows, columns)) for rows, columns in pairs], errors)


def of_grams(blocks: list[tuple[slice, slice, Tensor, Tensor]], errors: tuple[float, float]) -> Squares:
    """The same from blocks in hand: those on the diagonal, then those above it."""
    on = [(a, e) for rows, columns, a, e in blocks if rows == columns]
    of_a, of_e = (
        torch.cat([matrix.diagonal(dim1=1, dim2=2) for matrix in matrices], 1)
        for matrices in zip(*on, strict=True)
    )
    sums = torch.stack(
        [
            gram_sums(a, e, of_a, of_e, _ALIKE, rows.start, columns.start) * (1 if rows == columns else 2)
            for rows, columns, a, e in blocks
        ]
    ).sum(0)
    lengths = of_a.double() * of_e.double()
    apart = lengths.sum(1)
    error_a, error_e = errors
    bound = (error_a + error_e) * apart
    bound += error_a * (sums[1] - apart).abs() + error_e * (sums[2] - apart).abs()
    # What is below the smallest number of the type is lost without a trace.
    tiny = torch.finfo(of_a.dtype).tiny * of_a.shape[1] * 4096
    bound += tiny * (1 + of_a.double().sum(1) + of_e.double().sum(1))
    return Squares(sums[0], bound, lengths.sqrt_().sum(1), of_a.dtype)
