"""The backward loops of :mod:`staticgraph.kernels.neighbour_sum.cpu`, source by source."""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.addresses import carray, pointer
from staticgraph.kernels.jit import inlined, kernel
from staticgraph.store.columns import Array


@kernel
def _operands(like: float, at: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[Array, ...]:
    """``grad, x, edge, code, dst, row_ptr, col_ptr, transpose, into_x, into_edge, dx, dedge`` by
    their addresses; ``sizes`` are ``N, F``, those of ``edge``, of ``code`` and of ``dst``, and the
    rows of ``into_x`` and ``into_edge``."""
    nodes, width, entries, columns, codes, edges, on_nodes, on_edges = sizes
    number, small = np.int64(0), np.int32(0)
    return (
        carray(pointer(at[0], like), (nodes, width)),
        carray(pointer(at[1], like), (nodes, width)),
        carray(pointer(at[2], like), (entries, columns)),
        carray(pointer(at[3], number), codes),
        carray(pointer(at[4], number), edges),
        carray(pointer(at[5], small), nodes + 1),
        carray(pointer(at[6], small), nodes + 1),
        carray(pointer(at[7], small), edges),
        carray(pointer(at[8], like), (on_nodes, width)),
        carray(pointer(at[9], like), (on_edges, columns)),
        carray(pointer(at[10], like), (nodes, width)),
        carray(pointer(at[11], like), (entries, columns)),
    )


@inlined
def _product(first: Array, second: Array) -> float:
    """The sum of products, as eight sums: one alone would wait for itself at every column."""
    zero = first.dtype.type(0)
    a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
    whole = len(first) // 8 * 8
    for k in range(0, whole, 8):
        a += first[k] * second[k]
        b += first[k + 1] * second[k + 1]
        c += first[k + 2] * second[k + 2]
        d += first[k + 3] * second[k + 3]
        e += first[k + 4] * second[k + 4]
        f += first[k + 5] * second[k + 5]
        g += first[k + 6] * second[k + 6]
        h += first[k + 7] * second[k + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for k in range(whole, len(first)):
        total += first[k] * second[k]
    return total


@kernel
def copy_backward(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool
) -> None:
    """``dedge`` is left alone."""
    operands = _operands(like, at, sizes)
    grad, dst, row_ptr = operands[0], operands[4], operands[5]
    col_ptr, transpose = operands[6], operands[7]
    into_x, dx = operands[8], operands[10]
    width, zero, factor = grad.shape[1], grad.dtype.type(0), grad.dtype.type(scale)
    for j in range(len(grad)):
        if scale == 0.0:
            for f in range(width):
                dx[j, f] = zero
        else:
            for f in range(width):
                dx[j, f] = factor * grad[j, f]
        if len(into_x) > 0:
            for f in range(width):
                dx[j, f] += into_x[j, f]
        for k in range(col_ptr[j], col_ptr[j + 1]):
            i = dst[transpose[k]]
            share = grad.dtype.type(1) / grad.dtype.type(row_ptr[i + 1] - row_ptr[i] if mean else 1)
            for f in range(width):
                dx[j, f] += share * grad[i, f]


@kernel
def multiply_backward(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool
) -> None:
    """Every row of ``dx`` and ``dedge`` is written."""
    operands = _operands(like, at, sizes)
    grad, x, edge, code, dst, row_ptr, col_ptr, transpose = operands[:8]
    into_x, into_edge, dx, dedge = operands[8:]
    width, zero, factor = grad.shape[1], grad.dtype.type(0), grad.dtype.type(scale)
    coded, scalar = len(code) > 0, edge.shape[1] == 1
    if coded:
        dedge[:] = 0
    for j in range(len(grad)):
        if scale == 0.0:
            for f in range(width):
                dx[j, f] = zero
        else:
            for f in range(width):
                dx[j, f] = factor * grad[j, f]
        if len(into_x) > 0:
            for f in range(width):
                dx[j, f] += into_x[j, f]
        for k in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[k]
            i = dst[e]
            share = grad.dtype.type(1) / grad.dtype.type(row_ptr[i + 1] - row_ptr[i] if mean else 1)
            r = code[e] if coded else e
            if scalar:
                weight = share * edge[r, 0]
                for f in range(width):
                    dx[j, f] += weight * grad[i, f]
                total = _product(grad[i], x[j])
                dedge[r, 0] = share * total + (dedge[r, 0] if coded else zero)
                continue
            for f in range(width):
                part = share * grad[i, f]
                dx[j, f] += part * edge[r, f]
                if coded:
                    dedge[r, f] += part * x[j, f]
                else:
                    dedge[r, f] = part * x[j, f]
    if len(into_edge) > 0:
        dedge += into_edge


@kernel
def weighed_backward(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool
) -> None:
    """Of numbers without a gradient, one an edge: ``dedge`` is left alone."""
    operands = _operands(like, at, sizes)
    grad, edge, code, dst, row_ptr = operands[0], operands[2], operands[3], operands[4], operands[5]
    col_ptr, transpose = operands[6], operands[7]
    into_x, dx = operands[8], operands[10]
    width, zero, factor = grad.shape[1], grad.dtype.type(0), grad.dtype.type(scale)
    coded = len(code) > 0
    for j in range(len(grad)):
        if scale == 0.0:
            for f in range(width):
                dx[j, f] = zero
        else:
            for f in range(width):
                dx[j, f] = factor * grad[j, f]
        if len(into_x) > 0:
            for f in range(width):
                dx[j, f] += into_x[j, f]
        for k in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[k]
            i = dst[e]
            weight = edge[code[e] if coded else e, 0]
            if mean:
                weight /= grad.dtype.type(row_ptr[i + 1] - row_ptr[i])
            for f in range(width):
                dx[j, f] += weight * grad[i, f]


@kernel
def relu_add_backward(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool
) -> None:
    """Every row of ``dx`` and ``dedge`` is written."""
    operands = _operands(like, at, sizes)
    grad, x, edge, code, dst, row_ptr, col_ptr, transpose = operands[:8]
    into_x, into_edge, dx, dedge = operands[8:]
    width, zero, factor = grad.shape[1], grad.dtype.type(0), grad.dtype.type(scale)
    coded = len(code) > 0
    if coded:
        dedge[:] = 0
    for j in range(len(grad)):
        if scale == 0.0:
            for f in range(width):
                dx[j, f] = zero
        else:
            for f in range(width):
                dx[j, f] = factor * grad[j, f]
        if len(into_x) > 0:
            for f in range(width):
                dx[j, f] += into_x[j, f]
        for k in range(col_ptr[j], col_ptr[j + 1]):
            e = transpose[k]
            i = dst[e]
            share = grad.dtype.type(1) / grad.dtype.type(row_ptr[i + 1] - row_ptr[i] if mean else 1)
            r = code[e] if coded else e
            for f in range(width):
                part = zero if x[j, f] + edge[r, f] <= zero else share * grad[i, f]
                dx[j, f] += part
                if coded:
                    dedge[r, f] += part
                else:
                    dedge[r, f] = part
    if len(into_edge) > 0:
        dedge += into_edge
