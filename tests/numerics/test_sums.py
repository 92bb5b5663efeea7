"""Sums over long float32 rows match float64, compiled or not, on any number of threads."""

import math

import pytest
import torch
from torch import Tensor

from adamas._numerics import sums_kernel
from adamas._numerics.sums import row_products, row_sums, squared_norms
from tests.support.one_by_one import close

LANES, BLOCK, PIECE = sums_kernel._LANES, sums_kernel._BLOCK, sums_kernel._PIECE
WIDTHS = [1, LANES - 1, LANES, LANES + 1, BLOCK - 1, BLOCK, BLOCK + 65, PIECE - 1, PIECE, 2 * PIECE + 77]


@pytest.fixture(params=["compiled", "torch"])
def kernel(request, monkeypatch):
    if request.param == "compiled":
        if not sums_kernel.available():
            pytest.skip("Numba is missing")
    else:
        monkeypatch.setattr(sums_kernel, "available", lambda: False)
    return request.param


def whitened(rows: Tensor, center: Tensor | None, scale: Tensor | None) -> Tensor:
    rows = rows.double() if center is None else rows.double() - center.double()
    return (rows if scale is None else rows / scale.double()).flatten(1).square().sum(1)


def values(width: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = 0.3 + torch.randn(3, width, generator=generator)
    return rows, torch.randn(width, generator=generator), 0.1 + torch.rand(width, generator=generator)


def test_squared_norms_of_ten_million_float32_values_are_accurate_where_torch_is_not():
    rows = torch.randn(1, 10_000_000, generator=torch.Generator().manual_seed(0))
    exact = float(rows.double().square().sum())
    assert abs(float(squared_norms(rows)) / exact - 1) < 1e-6
    # The norm of torch is too low, so the example would be clipped too little.
    plain = float(torch.linalg.vector_norm(rows, dim=1).double().square())
    assert plain / exact - 1 < -1e-4


@pytest.mark.parametrize("columns", [1, 2047, 2048, 2049, 5000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_squared_norms_match_float64_for_any_length_and_dtype(columns, dtype):
    rows = torch.randn(3, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = rows.double().square().sum(1)
    assert squared_norms(rows).dtype == torch.float64
    torch.testing.assert_close(squared_norms(rows), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(squared_norms(rows.view(3, 1, columns)), expected, rtol=1e-6, atol=0)


def test_squared_norms_that_overflow_float32_are_finite():
    rows = torch.tensor([[1e30, 1e30], [1.0, 2.0], [math.inf, 0.0], [math.nan, 1e30]])
    squares = squared_norms(rows)
    assert float(squares[0]) == pytest.approx(2e60, rel=1e-6)
    assert float(squares[1]) == pytest.approx(5, rel=1e-6)
    assert not squares[2:].isfinite().any()
    long = torch.full((1, 5000), 1e30)
    assert float(squared_norms(long)) == pytest.approx(5e63, rel=1e-6)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0), (4,), (0,)])
def test_squared_norms_of_empty_and_scalar_rows_are_right(shape):
    squares = squared_norms(torch.ones(shape))
    assert squares.tolist() == [float(torch.ones(shape[1:]).sum())] * shape[0]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("centered", [False, True], ids=["scale", "center and scale"])
def test_whitened_norms_match_float64(kernel, width, centered):
    rows, center, scale = values(width)
    center = center if centered else None
    close(squared_norms(rows, center, scale), whitened(rows, center, scale), 5e-7)


@pytest.mark.parametrize("place", [0, LANES, BLOCK, PIECE + 5, -1])
def test_every_value_counts_in_its_own_row(kernel, place):
    rows, center, scale = values(2 * PIECE + 77)
    before = squared_norms(rows, center, scale)
    rows[1, place] += 1000 * scale[place]
    change = squared_norms(rows, center, scale) - before
    assert change[0] == change[2] == 0
    assert float(change[1]) == pytest.approx(1e6, rel=0.05)


def test_the_number_of_threads_changes_no_bit(kernel, monkeypatch):
    monkeypatch.setattr(sums_kernel, "_LEAST_SHARE", 1)
    rows, center, scale = values(3 * PIECE + 5)
    weights = torch.stack([center, scale, rows[1]])
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([squared_norms(rows, center, scale), row_sums(rows, weights)])
    finally:
        torch.set_num_threads(before)
    if kernel == "compiled":
        assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))
    else:
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                close(b, a, 1e-6)


def test_squares_beyond_float32_match_float64(kernel):
    rows, _, scale = values(5000)
    rows[0] *= 1e25
    rows[1] *= 1e-25
    rows[2, 7] = math.nan
    squares = squared_norms(rows, None, scale)
    expected = whitened(rows, None, scale)
    assert float(squares[0] / expected[0]) == pytest.approx(1, abs=1e-6)
    assert float(squares[1] / expected[1]) == pytest.approx(1, abs=1e-6)
    assert squares[2].isnan()


def test_a_row_at_the_center_has_norm_0(kernel):
    _, center, scale = values(300)
    squares = squared_norms(torch.stack([center, center + scale]), center, scale)
    assert float(squares[0]) == 0
    assert float(squares[1]) == pytest.approx(300, rel=1e-5)


def test_rows_need_not_be_contiguous(kernel):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(4, 5, 3, 7, generator=generator).movedim(1, 3)  # (4, 3, 7, 5), not contiguous
    center, scale = torch.randn(3, 7, 5, generator=generator), 0.1 + torch.rand(3, 7, 5, generator=generator)
    close(squared_norms(rows, center, scale), whitened(rows, center, scale), 5e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_whitened_norms_of_other_dtypes_match_float64(dtype):
    rows, center, scale = (t.to(dtype) for t in values(3000))
    expected = whitened(rows, center, scale)
    close(squared_norms(rows, center, scale), expected, 1e-12 if dtype == torch.float64 else 0.02)


@pytest.mark.parametrize("width", WIDTHS[:7])
def test_sums_of_rows_match_float64(kernel, width):
    generator = torch.Generator().manual_seed(2)
    rows = 0.3 + torch.randn(6, width, generator=generator)
    weights = 0.5 + torch.randn(2, width, generator=generator)
    rows[3] = 0  # a row of zeros
    wide = rows.double()
    squares, products, sums = row_sums(rows, weights)
    close(squares, wide.square().sum(1), 5e-7)
    close(products, (wide * weights.double().repeat(3, 1)).sum(1), 5e-7)
    close(sums, wide.sum(1), 5e-7)


def test_sums_of_rows_beyond_float32_do_not_overflow(kernel):
    rows = torch.ones(4, 100)
    rows[1], rows[2], rows[3] = 1e-25, 1e37, 0
    squares, products, sums = row_sums(rows, torch.full((2, 100), 2.0))
    assert squares.tolist() == pytest.approx([100, 1e-48, 1e76, 0], rel=1e-6)
    if kernel == "compiled":  # torch sums in float32
        assert products.tolist() == pytest.approx([200, 2e-23, 2e39, 0], rel=1e-6)
        assert sums.tolist() == pytest.approx([100, 1e-23, 1e39, 0], rel=1e-6)


@pytest.mark.parametrize("width", [0, 1, 511, 512, 1030])
def test_products_of_rows_match_float64(width):
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(4, width, generator=generator) + 0.5 for _ in range(2))
    close(row_products(x, y), (x.double() * y.double()).sum(1), 1e-6)
