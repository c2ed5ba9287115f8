"""``neighbour_sum`` on one core: two loops over the edges, nothing of size ``[E, F]`` in between.

Forward goes destination by destination, backward source by source through the transpose, so every
row of the result is written by one place. Measured (one of 2 shared CPU cores, 2026-11-20, 3,295
nodes, 7,093 edges, 64 columns): 0.07 ms forward and 0.12 ms backward, against 0.25 and 0.44 ms for
gather, add, relu and scatter in torch.
"""

from __future__ import annotations

from staticgraph.columns import Array
from staticgraph.kernels.jit import kernel

COPY, MULTIPLY, RELU_ADD = 0, 1, 2


@kernel
def forward(
    x: Array,
    edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    scale: float,
    transform: int,
    mean: bool,
    out: Array,
) -> None:
    """``edge`` is ``[V, F]``, or ``[V, 1]`` with one number an edge; ``code`` is empty where
    edge ``e`` reads row ``e``."""
    width = x.shape[1]
    coded, scalar = len(code) > 0, edge.shape[1] == 1 and width > 1
    zero, factor = x.dtype.type(0), x.dtype.type(scale)
    for i in range(len(x)):
        to = out[i]
        first, last = row_ptr[i], row_ptr[i + 1]
        for f in range(width):
            to[f] = zero
        for e in range(first, last):
            row = x[src[e]]
            if transform == COPY:
                for f in range(width):
                    to[f] += row[f]
                continue
            with_row = edge[code[e]] if coded else edge[e]
            if transform == RELU_ADD:
                for f in range(width):
                    value = row[f] + with_row[f]
                    to[f] += zero if value <= zero else value
            elif scalar:
                weight = with_row[0]
                for f in range(width):
                    to[f] += row[f] * weight
            else:
                for f in range(width):
                    to[f] += row[f] * with_row[f]
        if mean and last - first > 1:
            share = x.dtype.type(1) / x.dtype.type(last - first)
            for f in range(width):
                to[f] *= share
        if scale != 0.0:
            own = x[i]
            for f in range(width):
                to[f] += factor * own[f]


@kernel
def backward(
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    scale: float,
    transform: int,
    mean: bool,
    dx: Array,
    dedge: Array,
) -> None:
    """``dedge`` must be zero where ``code`` is given: rows of the table are added up."""
    width = x.shape[1]
    coded, scalar = len(code) > 0, edge.shape[1] == 1 and width > 1
    zero, one, factor = x.dtype.type(0), x.dtype.type(1), x.dtype.type(scale)
    for j in range(len(x)):
        to, own, mine = dx[j], x[j], grad[j]
        for f in range(width):
            to[f] = factor * mine[f] if scale != 0.0 else zero
        for k in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[k]
            i = dst[e]
            g = grad[i]
            degree = row_ptr[i + 1] - row_ptr[i]
            share = one / x.dtype.type(degree) if mean else one
            if transform == COPY:
                for f in range(width):
                    to[f] += share * g[f]
                continue
            r = code[e] if coded else e
            with_row, to_edge = edge[r], dedge[r]
            if transform == RELU_ADD:
                if coded:
                    for f in range(width):
                        part = zero if own[f] + with_row[f] <= zero else share * g[f]
                        to[f] += part
                        to_edge[f] += part
                else:
                    for f in range(width):
                        part = zero if own[f] + with_row[f] <= zero else share * g[f]
                        to[f] += part
                        to_edge[f] = part
            elif scalar:
                weight, total = share * with_row[0], zero
                for f in range(width):
                    to[f] += weight * g[f]
                    total += g[f] * own[f]
                to_edge[0] = share * total + (to_edge[0] if coded else zero)
            elif coded:
                for f in range(width):
                    to[f] += share * g[f] * with_row[f]
                    to_edge[f] += share * g[f] * own[f]
            else:
                for f in range(width):
                    to[f] += share * g[f] * with_row[f]
                    to_edge[f] = share * g[f] * own[f]
