"""Adagrad on the rows that a batch touched, and on no others.

The sum of a row's squared gradients grows and its values move by ``rate * g / (sqrt(sum) + eps)``.
Rows are distinct, so the loop has no conflicts and the result does not depend on any order.
Source: Duchi et al., JMLR 2011.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

EPSILON = np.float32(1e-10)
Rows = NDArray[np.float32]
Numbers = NDArray[np.int64]


@numba.njit(cache=True, nogil=True, fastmath=False)
def adagrad_rows(
    values: Rows, sums: Rows, rows: Numbers, gradient: Rows, rate: np.float32 | float
) -> None:
    """Updates ``values[rows]`` and ``sums[rows]``, ``[n, D]`` float32 each, with the first n
    rows of ``gradient``."""
    for i in range(len(rows)):
        row = rows[i]
        for d in range(values.shape[1]):
            g = gradient[i, d]
            total = sums[row, d] + g * g
            sums[row, d] = total
            values[row, d] -= rate * g / (np.sqrt(total) + EPSILON)


@numba.njit(cache=True, nogil=True)
def distinct(
    rows: Numbers, place: NDArray[np.int32], distinct_rows: Numbers, local: Numbers
) -> int:
    """The distinct entries of ``rows`` and where each entry stands among them.

    Args:
        rows: ``[n]`` row numbers.
        place: ``[number of rows]`` int32, all -1; all -1 again afterwards.
        distinct_rows: ``[n]``; its beginning is filled, in order of first appearance.
        local: ``[n]``; filled so that ``distinct_rows[local] == rows``.

    Returns:
        How many distinct entries there are.
    """
    count = 0
    for i in range(len(rows)):
        row = rows[i]
        if place[row] < 0:
            place[row] = count
            distinct_rows[count] = row
            count += 1
        local[i] = place[row]
    for k in range(count):
        place[distinct_rows[k]] = -1
    return count
