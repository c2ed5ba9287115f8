"""``neighbour_sum`` on the CPU: two loops over the edges, nothing of size ``[E, F]`` in between.

Forward goes destination by destination, backward source by source through the transpose, so every
row of the result is written by one place. Each transform has a loop of its own, with few enough
arrays for LLVM to prove that they do not overlap and use the vector unit. Measured (one of 2 shared
CPU cores, 2026-11-20, 3,295 nodes, 7,093 edges, 64 columns, GINE's transform over a table of 60
rows): 0.07 ms forward and 0.12 ms backward, against 0.25 and 0.44 ms for gather, add, relu and
scatter in torch.

In all of them ``edge`` is ``[V, F]``, or ``[V, 1]`` with one number an edge, and ``code`` is empty
where edge ``e`` reads row ``e``. A table that edges share takes its gradient in :data:`PARTS` parts
of the nodes, added up in order at the end, so that threads neither meet nor change the result.
``into_x`` and ``into_edge`` are what the gradients start from; empty for zero.
"""

from __future__ import annotations

import numpy as np

from staticgraph.kernels.jit import kernel
from staticgraph.kernels.threads import on_threads
from staticgraph.store.columns import Array

# Parts of the nodes: more than CPU cores gain from these loops, few enough to add up in no time.
PARTS = 8


@kernel
def _copy(
    thread: int,
    threads: int,
    x: Array,
    edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    scale: float,
    mean: bool,
    out: Array,
) -> None:
    width, zero, factor = x.shape[1], x.dtype.type(0), x.dtype.type(scale)
    for i in range(len(x) * thread // threads, len(x) * (thread + 1) // threads):
        first, last = row_ptr[i], row_ptr[i + 1]
        share = x.dtype.type(1) / x.dtype.type(max(last - first, 1) if mean else 1)
        if scale == 0.0:
            for f in range(width):
                out[i, f] = zero
        else:
            for f in range(width):
                out[i, f] = factor * x[i, f]
        for e in range(first, last):
            j = src[e]
            for f in range(width):
                out[i, f] += share * x[j, f]


_copy_on_threads = on_threads(_copy)


@kernel
def _multiply(
    thread: int,
    threads: int,
    x: Array,
    edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    scale: float,
    mean: bool,
    out: Array,
) -> None:
    width, zero, factor = x.shape[1], x.dtype.type(0), x.dtype.type(scale)
    coded, scalar = len(code) > 0, edge.shape[1] == 1
    for i in range(len(x) * thread // threads, len(x) * (thread + 1) // threads):
        first, last = row_ptr[i], row_ptr[i + 1]
        share = x.dtype.type(1) / x.dtype.type(max(last - first, 1) if mean else 1)
        if scale == 0.0:
            for f in range(width):
                out[i, f] = zero
        else:
            for f in range(width):
                out[i, f] = factor * x[i, f]
        for e in range(first, last):
            j, r = src[e], code[e] if coded else e
            if scalar:
                weight = share * edge[r, 0]
                for f in range(width):
                    out[i, f] += x[j, f] * weight
            else:
                for f in range(width):
                    out[i, f] += share * x[j, f] * edge[r, f]


_multiply_on_threads = on_threads(_multiply)


@kernel
def _relu_add(
    thread: int,
    threads: int,
    x: Array,
    edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    scale: float,
    mean: bool,
    out: Array,
) -> None:
    width, zero, factor = x.shape[1], x.dtype.type(0), x.dtype.type(scale)
    coded = len(code) > 0
    for i in range(len(x) * thread // threads, len(x) * (thread + 1) // threads):
        first, last = row_ptr[i], row_ptr[i + 1]
        share = x.dtype.type(1) / x.dtype.type(max(last - first, 1) if mean else 1)
        if scale == 0.0:
            for f in range(width):
                out[i, f] = zero
        else:
            for f in range(width):
                out[i, f] = factor * x[i, f]
        for e in range(first, last):
            j, r = src[e], code[e] if coded else e
            for f in range(width):
                value = x[j, f] + edge[r, f]
                out[i, f] += zero if value <= zero else share * value


_relu_add_on_threads = on_threads(_relu_add)


@kernel
def copy(
    threads: int,
    x: Array,
    edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    scale: float,
    mean: bool,
    out: Array,
) -> None:
    """Sums of ``x[src]``."""
    _copy_on_threads(threads, (x, edge, code, src, row_ptr, scale, mean, out))


@kernel
def multiply(
    threads: int,
    x: Array,
    edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    scale: float,
    mean: bool,
    out: Array,
) -> None:
    """Sums of ``x[src] * edge``."""
    _multiply_on_threads(threads, (x, edge, code, src, row_ptr, scale, mean, out))


@kernel
def relu_add(
    threads: int,
    x: Array,
    edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    scale: float,
    mean: bool,
    out: Array,
) -> None:
    """Sums of ``ReLU(x[src] + edge)``; a NaN stays one."""
    _relu_add_on_threads(threads, (x, edge, code, src, row_ptr, scale, mean, out))


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


FORWARD = {"copy": copy, "multiply": multiply, "relu_add": relu_add}
BACKWARD = {
    "copy": copy_backward,
    "multiply": multiply_backward,
    "relu_add": relu_add_backward,
}
