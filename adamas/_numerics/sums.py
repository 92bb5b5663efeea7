"""Adds up many float32 numbers without losing small terms."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adamas._numerics import sums_kernel

# A float32 sum of 10M squares is low by 7e-4 and its example would be clipped too little. Sums over
# blocks of this length, added up in float64, are off by about 1e-8, at the same speed.
_BLOCK = 2048

# In smaller sums, float32 squares may have underflowed to 0.
_LEAST_SQUARE = 1e-24


def squared_norms(rows: Tensor, center: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """Computes the squared L2 norm of each `(rows[i] - center) / scale` in float64, other axes flattened.

    It is fastest where center and scale have the memory layout of the rows.

    Guarantee: the relative error stays below 5e-7 for float32 rows of any length, and a finite row
    has a finite result even where its square overflows float32, and one above 0 where it underflows.
    """
    n, order = rows.shape[0], memory_order(rows)
    flat = rows.permute(0, *order).reshape(n, rows.shape[1:].numel())
    center, scale = (
        None if t is None else t.permute([axis - 1 for axis in order]).reshape(-1) for t in (center, scale)
    )
    if flat.dtype == torch.float64:
        return _whitened(flat, center, scale).square().sum(1)
    if flat.dtype != torch.float32:
        flat = flat.float()
    if scale is not None and sums_kernel.fits(flat, center, scale):
        total = sums_kernel.whitened_squares(flat, center, scale)
    else:
        total = _sums_of_squares(_whitened(flat, center, scale))
    if flat.numel():
        low, high = map(float, total.aminmax())  # NaN propagates to both
        if not (low >= _LEAST_SQUARE and high < math.inf):
            extreme = ~total.isfinite() | (total < _LEAST_SQUARE)
            if center is None:
                extreme &= (flat.amax(1) != 0) | (flat.amin(1) != 0)  # rows of zeros are right
            if extreme.any():
                total[extreme] = _whitened(flat[extreme].double(), center, scale).square().sum(1)
    return total


def row_sums(rows: Tensor, weights: Tensor) -> Tensor:
    """Computes each row's sum of squares, product with a row of the weights, and sum: `(3, n)`, float64.

    Row i belongs to row i modulo the number of rows of the weights.
    """
    if sums_kernel.fits(rows, weights):
        result = sums_kernel.row_sums(rows, weights)
        extreme = (~result[0].isfinite() | (result[0] < _LEAST_SQUARE)).nonzero().squeeze(1)
        if len(extreme):
            wide = rows[extreme].double()
            result[0, extreme] = wide.square().sum(1)
            result[1, extreme] = (wide * weights[extreme % len(weights)]).sum(1)
            result[2, extreme] = wide.sum(1)
        return result
    products = (rows.view(-1, *weights.shape) * weights).sum(2).view(-1).double()
    return torch.stack([squared_norms(rows), products, rows.sum(1).double()])


def _whitened(rows: Tensor, center: Tensor | None, scale: Tensor | None) -> Tensor:
    rows = rows if center is None else rows - center
    return rows if scale is None else rows / scale


def _sums_of_squares(rows: Tensor) -> Tensor:
    """Adds up the squares of each float32 row in float64; no square may over- or underflow."""
    n, width = rows.shape
    whole = width - width % _BLOCK
    if not whole:
        short: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square_()
        return short
    blocks = rows[:, :whole].reshape(n, whole // _BLOCK, _BLOCK)
    total: Tensor = torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(1)
    if whole < width:
        total += torch.linalg.vector_norm(rows[:, whole:], dim=1).double().square_()
    return total


def row_products(x: Tensor, y: Tensor) -> Tensor:
    """Computes `sum x[i] y[i]` over all axes except the first, added up in float64."""
    n = x.shape[0]
    products = (x * y).reshape(n, -1) if x.numel() else x.new_zeros(n, 1)
    if products.dtype == torch.float64:
        return products.sum(1)
    width = products.shape[1]
    blocks = width // 512
    total = products[:, : blocks * 512].reshape(n, blocks, 512).sum(2).double().sum(1)
    return total + products[:, blocks * 512 :].sum(1).double()


def gram_sums(blocks: Sequence[tuple[int, int, Tensor, Tensor]], places: int, alike: float) -> Tensor:
    """Adds up products of two symmetric matrices for each example: `(6, n)` in float64.

    The first three sums run over all pairs of places, over those that are alike in the first matrix, and
    over those that are alike in the second: alike in length, and in direction up to its sign. The other
    three run over the diagonal: the products, their roots, and the entries of both matrices.

    Args:
        blocks: First row, first column, and `(n, rows, columns)` of Gram matrices of two kinds of vectors:
            blocks on the diagonal, then those above it, which count for those below it as well.
        places: Number of rows of the whole matrices.
        alike: Products of alike vectors are at least this share of the mean of their squared lengths.
    """
    if sums_kernel.fits(*(t for _, _, *pair in blocks for t in pair)):
        return sums_kernel.gram_sums(blocks, places, alike)
    diagonal = [(a, e) for row, column, a, e in blocks if row == column]
    of_a, of_e = (
        torch.cat([matrix.diagonal(dim1=1, dim2=2) for matrix in matrices], 1)
        for matrices in zip(*diagonal, strict=True)
    )
    both = torch.zeros((3, len(of_a)), dtype=torch.float64, device=of_a.device)
    for row, column, a, e in blocks:
        products = a.double() * e.double()
        sums = [products.sum((1, 2))]
        for block, squares in ((a, of_a), (e, of_e)):
            rows, columns = squares[:, row : row + a.shape[1]], squares[:, column : column + a.shape[2]]
            least = alike / 2 * (rows.unsqueeze(2) + columns.unsqueeze(1))
            sums.append(products.masked_fill(block.abs() < least, 0).sum((1, 2)))
        both += (1 if row == column else 2) * torch.stack(sums)
    apart, traces = of_a.double() * of_e.double(), of_a.double() + of_e.double()
    return torch.cat([both, torch.stack([apart.sum(1), apart.sqrt().sum(1), traces.sum(1)])])


def memory_order(rows: Tensor) -> list[int]:
    """Returns the axes after the first, in memory order."""
    axes = list(range(1, rows.dim()))
    return axes if rows.is_contiguous() else sorted(axes, key=rows.stride, reverse=True)


def total(values: Tensor) -> float:
    """Adds up all values: short blocks in float32, and their sums in float64, which saves a copy."""
    flat = values.reshape(-1)
    if flat.dtype == torch.float64:
        return float(flat.sum())
    whole = len(flat) - len(flat) % _BLOCK
    blocks = flat[:whole].view(-1, _BLOCK).sum(1, dtype=torch.float32)
    return float(blocks.double().sum()) + float(flat[whole:].sum(dtype=torch.float32))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which sums over examples are kept: float32 for the 16-bit types."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
