"""Adagrad on only the rows that a batch touched.

A row's squared gradients are added to its sums, and its values change by ``-rate * g / (sqrt(sum) +
eps)``. Rows are distinct, so the loop has no conflicts and the result does not depend on their
order. Source: Duchi et al., JMLR 2011.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop

EPSILON = np.float32(1e-10)
Rows = NDArray[np.float32]
Numbers = NDArray[np.int64]


@loop
def adagrad_rows(
    values: Rows, sums: Rows, rows: Numbers, gradient: Rows, rate: np.float32 | float
) -> None:
    """Updates ``values[rows]`` and ``sums[rows]`` in place with the first n rows of ``gradient``.

    Each is ``[n, D]`` float32.
    """
    for i in range(len(rows)):
        row = rows[i]
        for d in range(values.shape[1]):
            g = gradient[i, d]
            total = sums[row, d] + g * g
            sums[row, d] = total
            values[row, d] -= rate * g / (np.sqrt(total) + EPSILON)


@loop
def distinct(
    rows: Numbers, place: NDArray[np.int32], distinct_rows: Numbers, local: Numbers
) -> int:
    """Finds the distinct entries of ``rows``, and the position of each entry among them.

    Args:
        rows: ``[n]`` row numbers.
        place: ``[number of rows]`` int32 scratch space, all -1; all -1 again afterwards.
        distinct_rows: ``[n]``; its beginning is filled, in order of first appearance.
        local: ``[n]``; filled so that ``distinct_rows[local] == rows``.

    Returns:
        The number of distinct entries.
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
