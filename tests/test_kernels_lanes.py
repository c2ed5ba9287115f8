"""Operations on rows in SIMD lanes, compared with NumPy: sums, maxima, row-matrix products."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from staticgraph.kernels import lanes
from staticgraph.kernels.lanes import LANES

DTYPES = [np.float32, np.float64]


@numba.njit
def total(values, first, count):
    return lanes.total(values, first, count)


@numba.njit
def largest(values, first, count):
    return lanes.largest(values, first, count)


@numba.njit
def dot(left, i, right, j, count):
    return lanes.dot(left, i, right, j, count)


@numba.njit
def combine(weights, at, step, matrix, first, stride, count, out, place, columns, start, origin):
    lanes.combine(
        weights, at, step, matrix, first, stride, count, out, place, columns, start, origin
    )


def numbers(count, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rows_of_any_length(dtype):
    left, right = numbers(90, dtype), numbers(90, dtype, seed=1)
    near = 100 * float(np.finfo(dtype).eps)
    for count in (0, 1, LANES - 1, LANES, LANES + 1, 2 * LANES, 5 * LANES + 3):
        a, b = left[3 : 3 + count].astype(np.float64), right[5 : 5 + count].astype(np.float64)
        assert total(left, 3, count) == pytest.approx(a.sum(), abs=near)
        assert dot(left, 3, right, 5, count) == pytest.approx(a @ b, abs=near)


def test_the_order_of_a_sum_is_said_and_not_the_machines():
    """One sum per lane, halves added until one is left, and the remaining elements last."""
    values = numbers(2 * LANES + 3, np.float32)
    sums = values[:LANES] + values[LANES : 2 * LANES]
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    a, b, c = values[2 * LANES :]
    assert total(values, 0, len(values)) == sums[0] + ((a + b) + c)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_of_a_row(dtype):
    values = numbers(4 * LANES, dtype)
    for count in (LANES, 3 * LANES):
        for place in (0, LANES - 1, count - 1):
            row = values.copy()
            row[1 + place] = 9
            assert largest(row, 1, count) == 9
            row[1 + place] = np.nan
            assert np.isnan(largest(row, 1, count))
    assert largest(np.full(LANES, -np.inf, dtype), 0, LANES) == -np.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_row_of_weights_times_a_matrix(dtype, count):
    """From the middle of arrays, with strided weights, added to a start row; nothing else is
    written."""
    stride, columns = 3 * LANES, 2 * LANES
    weights, matrix = numbers(40, dtype), numbers(8 * stride, dtype, seed=1)
    start, out = numbers(100, dtype, seed=2), np.full(100, 5, dtype)
    rows = np.stack([matrix[4 + k * stride :][:columns] for k in range(7)])[:count]
    expected = start[9 : 9 + columns] + weights[2 : 2 + 5 * count : 5] @ rows
    combine(weights, 2, 5, matrix, 4, stride, count, out, 11, columns, start, 9)
    np.testing.assert_allclose(out[11 : 11 + columns], expected, rtol=1e-5, atol=1e-5)
    assert (np.delete(out, np.s_[11 : 11 + columns]) == 5).all()
    again = out.copy()
    combine(weights, 2, 5, matrix, 4, stride, count, again, 11, columns, again, 11)
    grown = out[11 : 11 + columns] + (expected - start[9 : 9 + columns])
    np.testing.assert_allclose(again[11 : 11 + columns], grown, rtol=1e-5, atol=1e-5)
