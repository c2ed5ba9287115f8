"""The backward loops of :mod:`staticgraph.kernels.neighbour_sum.cpu`, source by source."""

from __future__ import annotations

import numpy as np
from numba import carray

from staticgraph.kernels.addresses import pointer
from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array


@kernel
def copy_backward(
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    into_edge: Array,
    scale: float,
    mean: bool,
    dx: Array,
    dedge: Array,
) -> None:
    """``dedge`` is left alone."""
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
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    into_edge: Array,
    scale: float,
    mean: bool,
    dx: Array,
    dedge: Array,
) -> None:
    """Every row of ``dx`` and ``dedge`` is written."""
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
                weight, total = share * edge[r, 0], zero
                for f in range(width):
                    dx[j, f] += weight * grad[i, f]
                    total += grad[i, f] * x[j, f]
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
def relu_add_backward(
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    into_edge: Array,
    scale: float,
    mean: bool,
    dx: Array,
    dedge: Array,
) -> None:
    """Every row of ``dx`` and ``dedge`` is written."""
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


@kernel
def _operands(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[tuple[Array, ...], Array, Array]:
    """What a loop above reads and what it writes, by addresses; ``sizes`` are ``N, F``, those of
    ``edge``, of ``code`` and of ``dst``, and the rows of ``into_x`` and ``into_edge``."""
    nodes, width, entries, columns, codes, edges, on_nodes, on_edges = sizes
    number, small = np.int64(0), np.int32(0)
    read = (
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
    )
    dx = carray(pointer(at[10], like), (nodes, width))
    return read, dx, carray(pointer(at[11], like), (entries, columns))


@kernel
def copy_backward_at(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool
) -> None:
    """:func:`copy_backward` of :func:`_operands`."""
    read, dx, dedge = _operands(like, at, sizes)
    copy_backward(*read, scale, mean, dx, dedge)


@kernel
def multiply_backward_at(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool
) -> None:
    """:func:`multiply_backward` of :func:`_operands`."""
    read, dx, dedge = _operands(like, at, sizes)
    multiply_backward(*read, scale, mean, dx, dedge)


@kernel
def relu_add_backward_at(
    like: float, at: tuple[int, ...], sizes: tuple[int, ...], scale: float, mean: bool
) -> None:
    """:func:`relu_add_backward` of :func:`_operands`."""
    read, dx, dedge = _operands(like, at, sizes)
    relu_add_backward(*read, scale, mean, dx, dedge)
