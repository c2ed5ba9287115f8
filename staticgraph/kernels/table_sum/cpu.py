"""``table_sum`` on one core: each row of the result is written once, each gradient row added in
the order of the rows, so no sort is needed and the result is the same every time.

Measured (one of 2 shared CPU cores, 2026-11-20, 3,295 rows of OGB's nine atom features, 64
columns): 0.16 ms forward and 0.10 ms backward.
"""

from __future__ import annotations

from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array


@kernel
def forward(index: Array, offsets: Array, weight: Array, out: Array) -> int:
    """Returns -1, or the first place in ``index`` whose value is outside its table."""
    rows, columns = index.shape
    width = weight.shape[1]
    for r in range(rows):
        to = out[r]
        for f in range(width):
            to[f] = 0
        for c in range(columns):
            entry = index[r, c] + offsets[c]
            if index[r, c] < 0 or entry >= offsets[c + 1]:
                return r * columns + c
            row = weight[entry]
            for f in range(width):
                to[f] += row[f]
    return -1


@kernel
def backward(grad: Array, index: Array, offsets: Array, dweight: Array) -> None:
    """``dweight`` is overwritten. The forward has checked the indices."""
    rows, columns = index.shape
    width = dweight.shape[1]
    for entry in range(len(dweight)):
        for f in range(width):
            dweight[entry, f] = 0
    for r in range(rows):
        row = grad[r]
        for c in range(columns):
            to = dweight[index[r, c] + offsets[c]]
            for f in range(width):
                to[f] += row[f]


@kernel
def codes(index: Array, offsets: Array, out: Array) -> int:
    """Mixed-radix numbers, last column fastest; returns as :func:`forward`."""
    rows, columns = index.shape
    for r in range(rows):
        code = 0
        for c in range(columns):
            size = offsets[c + 1] - offsets[c]
            if index[r, c] < 0 or index[r, c] >= size:
                return r * columns + c
            code = code * size + index[r, c]
        out[r] = code
    return -1
