"""``batch_norm`` on the CPU: two passes over the rows per direction, ReLU and sums included.

Statistics are computed over blocks of :data:`BLOCK` rows, which stay in the L1 cache between their
mean and their squares, and merged in float64 in row order (Chan, Golub and LeVeque 1983), so
accuracy depends neither on the number of rows nor on the size of the mean. The loops are separate
functions so that LLVM can prove their arrays disjoint and vectorise them.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Vector
from staticgraph.kernels.threads import on_threads, portion
from staticgraph.store.columns import Array

BLOCK = 64


@kernel_part
def _statistics(
    thread: int, threads: int, x: Array, addend: Array, total: Array, count: int, parts: Array
) -> None:
    """Computes mean and sum of squared deviations of each block of real rows; with an addend, also
    writes the sum for every row."""
    width, zero = x.shape[1], x.dtype.type(0)
    added = len(addend) > 0
    begin, end = portion((len(x) + BLOCK - 1) // BLOCK, thread, threads)
    for block in range(begin, end):
        first, last = block * BLOCK, min(len(x), (block + 1) * BLOCK)
        if added:
            for r in range(first, last):
                for f in range(width):
                    total[r, f] = x[r, f] + addend[r, f]
        values = total if added else x
        rows = min(last, count) - first
        if rows <= 0:
            continue
        centre, part = parts[block, 0], parts[block, 1]
        for f in range(width):
            centre[f] = zero
        for r in range(first, first + rows):
            for f in range(width):
                centre[f] += values[r, f]
        for f in range(width):
            centre[f] /= x.dtype.type(rows)
            part[f] = zero
        for r in range(first, first + rows):
            for f in range(width):
                away = values[r, f] - centre[f]
                part[f] += away * away


@kernel_part
def _apply(
    thread: int,
    threads: int,
    x: Array,
    residual: Array,
    scale: Array,
    shift: Array,
    count: int,
    relu: bool,
    out: Array,
) -> None:
    """Writes ``residual + x * scale + shift``, with ReLU if requested; padding rows get the
    residual, or zero."""
    width, zero = x.shape[1], x.dtype.type(0)
    floor = zero if relu else x.dtype.type(-np.inf)
    begin, end = portion(len(x), thread, threads)
    real = max(begin, min(end, count))
    if len(residual) > 0:
        for r in range(begin, real):
            for f in range(width):
                value = x[r, f] * scale[f] + shift[f]
                out[r, f] = (floor if value <= floor else value) + residual[r, f]
        for r in range(real, end):
            for f in range(width):
                out[r, f] = residual[r, f]
        return
    for r in range(begin, real):
        for f in range(width):
            value = x[r, f] * scale[f] + shift[f]
            out[r, f] = floor if value <= floor else value
    for r in range(real, end):
        for f in range(width):
            out[r, f] = zero


@kernel_part
def _gradient_sums(
    thread: int,
    threads: int,
    grad: Array,
    x: Array,
    scale: Array,
    shift: Array,
    centre: Array,
    count: int,
    relu: bool,
    parts: Array,
) -> None:
    """Sums, per block, the gradient that passes ReLU and its product with ``x - centre``.

    Whether ReLU passed a value is recomputed with the arithmetic of :func:`_apply`.
    """
    width, zero = x.shape[1], x.dtype.type(0)
    floor = zero if relu else x.dtype.type(-np.inf)
    begin, end = portion((count + BLOCK - 1) // BLOCK, thread, threads)
    for block in range(begin, end):
        part, product = parts[block, 0], parts[block, 1]
        for f in range(width):
            part[f] = zero
            product[f] = zero
        for r in range(block * BLOCK, min((block + 1) * BLOCK, count)):
            for f in range(width):
                value = x[r, f] * scale[f] + shift[f]
                passed = zero if value <= floor else grad[r, f]
                part[f] += passed
                product[f] += passed * (x[r, f] - centre[f])


@kernel_part
def _apply_gradient(
    thread: int,
    threads: int,
    grad: Array,
    x: Array,
    scale: Array,
    shift: Array,
    constant: Array,
    slope: Array,
    count: int,
    relu: bool,
    dx: Array,
) -> None:
    """Writes ``scale * passed - constant - slope * x`` in real rows, zero in the others."""
    width, zero = x.shape[1], x.dtype.type(0)
    floor = zero if relu else x.dtype.type(-np.inf)
    begin, end = portion(len(x), thread, threads)
    real = max(begin, min(end, count))
    for r in range(begin, real):
        for f in range(width):
            value = x[r, f] * scale[f] + shift[f]
            passed = zero if value <= floor else grad[r, f]
            dx[r, f] = scale[f] * passed - constant[f] - slope[f] * x[r, f]
    for r in range(real, end):
        for f in range(width):
            dx[r, f] = zero


_statistics_on_threads = on_threads(_statistics)
_apply_on_threads = on_threads(_apply)
_gradient_sums_on_threads = on_threads(_gradient_sums)
_apply_gradient_on_threads = on_threads(_apply_gradient)


@kernel_part
def _affine(
    weight: Array, bias: Array, mean: Array, var: Array, eps: float, scale: Array, shift: Array
) -> None:
    """Computes the scale and shift with which ``x * scale + shift`` is the normalised value.

    Forward and backward get the same bits.
    """
    for f in range(len(mean)):
        wide = weight[f] / np.sqrt(np.float64(var[f]) + eps)
        scale[f] = wide
        shift[f] = bias[f] - mean[f] * wide


@kernel_part
def _update(
    mean: Array,
    var: Array,
    count: int,
    running_mean: Array,
    running_var: Array,
    tracked: Array,
    momentum: float,
) -> None:
    """Updates running statistics, unless there are fewer than two rows, whose variance is
    meaningless.

    A negative ``momentum`` means the cumulative average.
    """
    if count < 2:
        return
    tracked[0] += 1
    share = momentum if momentum >= 0 else 1.0 / tracked[0]
    unbias = count / max(count - 1, 1)
    for f in range(len(mean)):
        running_mean[f] += share * (mean[f] - running_mean[f])
        running_var[f] += share * (var[f] * unbias - running_var[f])


@CpuLoop
def forward(
    x: Matrix,
    addend: Matrix,
    residual: Matrix,
    weight: Vector,
    bias: Vector,
    count: Indices,
    running_mean: Vector,
    running_var: Vector,
    tracked: Indices,
    momentum: float,
    eps: float,
    relu: bool,
    out: Matrix,
    mean: Vector,
    var: Vector,
    total: Matrix,
    threads: int,
) -> None:
    """Runs forward; the total is written if there is an addend, and running statistics are updated
    if there are any."""
    (rows, width), real, added = x.shape, count[0], len(addend) > 0
    parts = np.empty(((rows + BLOCK - 1) // BLOCK, 2, width), x.dtype)
    _statistics_on_threads(threads, (x, addend, total, real, parts))
    centre, square = np.zeros(width), np.zeros(width)
    for block in range((real + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        length = min(BLOCK, real - first)
        share = length / (first + length)
        for f in range(width):
            step = parts[block, 0, f] - centre[f]
            centre[f] += step * share
            square[f] += parts[block, 1, f] + step * step * first * share
    for f in range(width):
        mean[f] = centre[f]
        var[f] = square[f] / max(real, 1)
    scale, shift = np.empty(width, x.dtype), np.empty(width, x.dtype)
    _affine(weight, bias, mean, var, eps, scale, shift)
    values = total if added else x
    _apply_on_threads(threads, (values, residual, scale, shift, real, relu, out))
    if len(tracked) > 0:
        _update(mean, var, real, running_mean, running_var, tracked, momentum)


@CpuLoop
def backward(
    grad: Matrix,
    x: Matrix,
    weight: Vector,
    bias: Vector,
    mean: Vector,
    var: Vector,
    count: Indices,
    eps: float,
    relu: bool,
    dx: Matrix,
    dweight: Vector,
    dbias: Vector,
    threads: int,
) -> None:
    """Runs backward."""
    width, real = x.shape[1], count[0]
    scale, shift = np.empty(width, x.dtype), np.empty(width, x.dtype)
    _affine(weight, bias, mean, var, eps, scale, shift)
    blocks = (real + BLOCK - 1) // BLOCK
    parts = np.empty((blocks, 2, width), x.dtype)
    _gradient_sums_on_threads(threads, (grad, x, scale, shift, mean, real, relu, parts))
    sums, products = np.zeros(width), np.zeros(width)
    for block in range(blocks):
        for f in range(width):
            sums[f] += parts[block, 0, f]
            products[f] += parts[block, 1, f]
    constant, slope = np.empty(width, x.dtype), np.empty(width, x.dtype)
    n = max(real, 1)
    for f in range(width):
        inverse = 1 / np.sqrt(np.float64(var[f]) + eps)
        dbias[f] = sums[f]
        dweight[f] = products[f] * inverse
        steep = scale[f] * products[f] * inverse * inverse / n
        slope[f] = steep
        constant[f] = scale[f] * sums[f] / n - steep * mean[f]
    arguments = grad, x, scale, shift, constant, slope, real, relu, dx
    _apply_gradient_on_threads(threads, arguments)
