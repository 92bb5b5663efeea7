"""Sums over float32 rows in one pass over memory, compiled by Numba.

Torch makes a pass for each operation, and needs memory for intermediate results. These loops add in parallel
lanes, as many as vector instructions take, so that the compiler can use them without reordering the sums.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adamas._numerics.compiled import Array, compiled, numba
from adamas._numerics.threads import share_out

_F, _D = np.float32, np.float64
_LANES = 64
# Squares that are added up in float32, in lanes, before float64 takes over.
_BLOCK = 32 * _LANES
# Numbers of a row that one thread adds up; numbers in all from which another thread pays off.
_PIECE = 1 << 17
_LEAST_SHARE = 1 << 20


@compiled
def _squares(
    rows: Array, center: Any, scale: Array, out: Array, width: int, pieces: int, start: int, stop: int
) -> None:
    """Adds up the squares of pieces of rows, counted row by row, into `out`. The center may be None."""
    lanes = np.empty(_LANES, np.float32)
    for piece in range(start, stop):
        row, first = piece // pieces, (piece % pieces) * _PIECE
        last = min(first + _PIECE, width)
        total = _D(0)
        for begin in range(first, last, _BLOCK):
            end = min(begin + _BLOCK, last)
            whole = begin + (end - begin) // _LANES * _LANES
            for i in range(_LANES):
                lanes[i] = _F(0)
            for k in range(begin, whole, _LANES):
                x, s = rows[row, k : k + _LANES], scale[k : k + _LANES]
                if center is None:
                    for i in range(_LANES):
                        u = x[i] / s[i]
                        lanes[i] += u * u
                else:
                    c = center[k : k + _LANES]
                    for i in range(_LANES):
                        u = (x[i] - c[i]) / s[i]
                        lanes[i] += u * u
            for i in range(_LANES):
                total += _D(lanes[i])
            for k in range(whole, end):
                u = (rows[row, k] if center is None else rows[row, k] - center[k]) / scale[k]
                total += _D(u * u)
        out[piece] = total


@compiled
def _row_sums(rows: Array, weights: Array, out: Array, start: int, stop: int) -> None:
    """Computes for each row the sum of its squares, its product with a row of the weights, and its sum."""
    squares, products, sums = (
        np.empty(_LANES, np.float32),
        np.empty(_LANES, np.float32),
        np.empty(_LANES, np.float32),
    )
    width = rows.shape[1]
    for row in range(start, stop):
        weight = weights[row % len(weights)]
        square, product, total = _D(0), _D(0), _D(0)
        for begin in range(0, width, _BLOCK):
            end = min(begin + _BLOCK, width)
            whole = begin + (end - begin) // _LANES * _LANES
            for i in range(_LANES):
                squares[i], products[i], sums[i] = _F(0), _F(0), _F(0)
            for k in range(begin, whole, _LANES):
                x, w = rows[row, k : k + _LANES], weight[k : k + _LANES]
                for i in range(_LANES):
                    squares[i] += x[i] * x[i]
                    products[i] += x[i] * w[i]
                    sums[i] += x[i]
            for i in range(_LANES):
                square, product, total = square + squares[i], product + products[i], total + sums[i]
            for k in range(whole, end):
                value = rows[row, k]
                square, product, total = square + value * value, product + value * weight[k], total + value
        out[0, row], out[1, row], out[2, row] = square, product, total


@compiled
def _gram_sums(
    a: Array,
    e: Array,
    of_a: Array,
    of_e: Array,
    alike: float,
    row: int,
    column: int,
    out: Array,
    start: int,
    stop: int,
) -> None:
    """Adds one block to the sums of `adamas._numerics.sums.gram_sums`: on the diagonal, or above it."""
    height, width = a.shape[1:]
    alike_half = _F(alike / 2)
    times = _D(1) if row == column else _D(2)
    lanes, lanes_a, lanes_e = np.empty(width), np.empty(width), np.empty(width)
    for i in range(start, stop):
        for s in range(width):
            lanes[s], lanes_a[s], lanes_e[s] = _D(0), _D(0), _D(0)
        if row == column:
            for t in range(height):
                own_a, own_e = a[i, t, t], e[i, t, t]
                of_a[i, row + t], of_e[i, row + t] = own_a, own_e
                product = _D(own_a) * _D(own_e)
                out[3, i] += product
                out[4, i] += np.sqrt(product)
                out[5, i] += _D(own_a) + _D(own_e)
        columns_a, columns_e = of_a[i, column : column + width], of_e[i, column : column + width]
        for t in range(height):
            x, y = a[i, t], e[i, t]
            own_a, own_e = of_a[i, row + t], of_e[i, row + t]
            for s in range(width):
                product = _D(x[s]) * _D(y[s])
                lanes[s] += product
                lanes_a[s] += product if abs(x[s]) >= alike_half * (own_a + columns_a[s]) else _D(0)
                lanes_e[s] += product if abs(y[s]) >= alike_half * (own_e + columns_e[s]) else _D(0)
        total, total_a, total_e = _D(0), _D(0), _D(0)
        for s in range(width):
            total, total_a, total_e = total + lanes[s], total_a + lanes_a[s], total_e + lanes_e[s]
        out[0, i] += times * total
        out[1, i] += times * total_a
        out[2, i] += times * total_e


@compiled
def _outside(
    found: Array, rows: Array, direction: Array, columns: Array, out: Array, start: int, stop: int
) -> None:
    """Counts the numbers of each row that are too far from the expected ones."""
    for row in range(start, stop):
        mean, size, along, least, slope = (
            columns[0, row],
            columns[1, row],
            columns[2, row],
            columns[3, row],
            columns[4, row],
        )
        count = 0
        for k in range(direction.shape[0]):
            x = rows[row, k]
            apart = abs(mean + size * direction[k] + along * x - found[row, k])
            count += 0 if apart <= least + slope * abs(x) else 1  # NaN counts
        out[row] = count


@functools.cache
def available() -> bool:
    """Whether the kernels can be used; the first call compiles them, or reads them from Numba's cache."""
    try:
        f, d, i = numba.float32, numba.float64, numba.int64
        for center in (numba.none, f[::1]):
            _squares.compile((f[:, ::1], center, f[::1], d[::1], i, i, i, i))
        _row_sums.compile((f[:, ::1], f[:, ::1], d[:, ::1], i, i))
        _gram_sums.compile((f[:, :, ::1], f[:, :, ::1], f[:, ::1], f[:, ::1], d, i, i, d[:, ::1], i, i))
        _outside.compile((f[:, ::1], f[:, ::1], f[::1], f[:, ::1], i[::1], i, i))
    except Exception:  # whatever the reason, torch can do it
        return False
    return True


def fits(*tensors: Tensor | None) -> bool:
    """Whether the kernels can be used for these tensors."""
    return available() and all(
        t is None or (t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous())
        for t in tensors
    )


def whitened_squares(rows: Tensor, center: Tensor | None, scale: Tensor) -> Tensor:
    """Computes `sum_k ((rows[i, k] - center[k]) / scale[k])^2` in float64, with any threads alike."""
    n, width = rows.shape
    pieces = max(1, -(-width // _PIECE))
    sums = np.empty(n * pieces)
    arrays = [None if t is None else t.detach().numpy() for t in (rows, center, scale)]
    _shared(_squares, (*arrays, sums, width, pieces), n * pieces, min(width, _PIECE))
    return torch.from_numpy(sums.reshape(n, pieces).sum(1))


def row_sums(rows: Tensor, weights: Tensor) -> Tensor:
    """See `adamas._numerics.sums.row_sums`."""
    sums = np.empty((3, len(rows)))
    arrays = [t.detach().numpy() for t in (rows, weights)]
    _shared(_row_sums, (*arrays, sums), len(rows), rows.shape[1])
    return torch.from_numpy(sums)


def all_near(found: Tensor, rows: Tensor, direction: Tensor, columns: Tensor) -> bool:
    """Tells whether each number of `found` is close to `mean + size * direction + along * row`.

    Args:
        found: `(n, width)`.
        rows: The same.
        direction: `(width,)`.
        columns: `(5, n)`: mean, size, along, and the tolerance, as an absolute part and a factor of the
            row's number.
    """
    outside = np.empty(len(found), np.int64)
    arrays = [t.detach().numpy() for t in (found, rows, direction, columns)]
    _shared(_outside, (*arrays, outside), len(found), found.shape[1])
    return not outside.any()


def gram_sums(blocks: Sequence[tuple[int, int, Tensor, Tensor]], places: int, alike: float) -> Tensor:
    """See `adamas._numerics.sums.gram_sums`."""
    n = len(blocks[0][2])
    sums = np.zeros((6, n))
    of_a, of_e = np.empty((2, n, places), np.float32)
    for row, column, *pair in blocks:
        a, e = (t.detach().numpy() for t in pair)
        _shared(_gram_sums, (a, e, of_a, of_e, alike, row, column, sums), n, a.shape[1] * a.shape[2])
    return torch.from_numpy(sums)


def _shared(function: Callable[..., None], arguments: tuple[Any, ...], count: int, size: int) -> None:
    """Runs `function` over `count` pieces of `size` numbers, on as many threads as pay off."""
    for other in share_out([(function, arguments, count)], -(-_LEAST_SHARE // max(1, size))):
        other.result()
