"""The backward loops of :mod:`staticgraph.kernels.neighbour_sum.cpu`, source by source."""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.jit import kernel
from staticgraph.kernels.threads import on_threads
from staticgraph.store.columns import Array

# Parts of the nodes: more than CPU cores gain from these loops, few enough to add up in no time.
PARTS = 8


@kernel
def _copy_backward(
    thread: int,
    threads: int,
    grad: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    scale: float,
    mean: bool,
    dx: Array,
) -> None:
    width, zero, factor = grad.shape[1], grad.dtype.type(0), grad.dtype.type(scale)
    for j in range(len(grad) * thread // threads, len(grad) * (thread + 1) // threads):
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


_copy_backward_on_threads = on_threads(_copy_backward)


@kernel
def _multiply_rows(
    first: int,
    last: int,
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    scale: float,
    mean: bool,
    dx: Array,
    to: Array,
) -> None:
    width, zero, factor = grad.shape[1], grad.dtype.type(0), grad.dtype.type(scale)
    coded, scalar = len(code) > 0, edge.shape[1] == 1
    for j in range(first, last):
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
                to[r, 0] = share * total + (to[r, 0] if coded else zero)
                continue
            for f in range(width):
                part = share * grad[i, f]
                dx[j, f] += part * edge[r, f]
                if coded:
                    to[r, f] += part * x[j, f]
                else:
                    to[r, f] = part * x[j, f]


@kernel
def _multiply_backward(
    thread: int,
    threads: int,
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    scale: float,
    mean: bool,
    dx: Array,
    parts: Array,
) -> None:
    rows, where = len(grad), (dst, row_ptr, col_ptr, transpose)
    for p in range(thread, PARTS, threads):
        first, last = rows * p // PARTS, rows * (p + 1) // PARTS
        to = parts[p % len(parts)]
        if len(code) > 0:
            to[:] = 0
        _multiply_rows(first, last, grad, x, edge, code, *where, into_x, scale, mean, dx, to)


_multiply_backward_on_threads = on_threads(_multiply_backward)


@kernel
def _relu_add_rows(
    first: int,
    last: int,
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    scale: float,
    mean: bool,
    dx: Array,
    to: Array,
) -> None:
    width, zero, factor = grad.shape[1], grad.dtype.type(0), grad.dtype.type(scale)
    coded = len(code) > 0
    for j in range(first, last):
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
                    to[r, f] += part
                else:
                    to[r, f] = part


@kernel
def _relu_add_backward(
    thread: int,
    threads: int,
    grad: Array,
    x: Array,
    edge: Array,
    code: Array,
    dst: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
    into_x: Array,
    scale: float,
    mean: bool,
    dx: Array,
    parts: Array,
) -> None:
    rows, where = len(grad), (dst, row_ptr, col_ptr, transpose)
    for p in range(thread, PARTS, threads):
        first, last = rows * p // PARTS, rows * (p + 1) // PARTS
        to = parts[p % len(parts)]
        if len(code) > 0:
            to[:] = 0
        _relu_add_rows(first, last, grad, x, edge, code, *where, into_x, scale, mean, dx, to)


_relu_add_backward_on_threads = on_threads(_relu_add_backward)


@kernel
def _joined(parts: Array, into: Array, coded: bool, dedge: Array) -> None:
    """Parts of a table's gradient added up in order, and what there was before."""
    if coded:
        dedge[:] = parts[0]
        for p in range(1, PARTS):
            dedge += parts[p]
    if len(into) > 0:
        dedge += into


@kernel
def copy_backward(
    threads: int,
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
    arguments = (grad, dst, row_ptr, col_ptr, transpose, into_x, scale, mean, dx)
    _copy_backward_on_threads(threads, arguments)


@kernel
def _parts(dedge: Array, coded: bool) -> Array:
    """Where parts of a table's gradient go; the gradient itself where every edge has its own."""
    if coded:
        return np.empty((PARTS, *dedge.shape), dedge.dtype)
    return dedge.reshape((1, *dedge.shape))


@kernel
def multiply_backward(
    threads: int,
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
    parts, where = _parts(dedge, len(code) > 0), (dst, row_ptr, col_ptr, transpose)
    arguments = (grad, x, edge, code, *where, into_x, scale, mean, dx, parts)
    _multiply_backward_on_threads(threads, arguments)
    _joined(parts, into_edge, len(code) > 0, dedge)


@kernel
def relu_add_backward(
    threads: int,
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
    parts, where = _parts(dedge, len(code) > 0), (dst, row_ptr, col_ptr, transpose)
    arguments = (grad, x, edge, code, *where, into_x, scale, mean, dx, parts)
    _relu_add_backward_on_threads(threads, arguments)
    _joined(parts, into_edge, len(code) > 0, dedge)
