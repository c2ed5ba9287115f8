"""``batch_norm`` on one core: two passes over the rows each way, ReLU and residual sum included.

Sums run over blocks of :data:`BLOCK` rows in the input's precision and over the blocks in float64,
which bounds the error of a mean over any number of rows by that over one block.
"""

from __future__ import annotations

import numpy as np

from staticgraph.columns import Array
from staticgraph.kernels.jit import kernel

BLOCK = 64


@kernel
def forward(
    x: Array,
    residual: Array,
    weight: Array,
    bias: Array,
    count: int,
    eps: float,
    relu: bool,
    out: Array,
    mean: Array,
    var: Array,
) -> None:
    """``residual`` is empty where there is none. Rows from ``count`` on get the residual alone."""
    width, zero = x.shape[1], x.dtype.type(0)
    total, block = np.zeros(width), np.empty(width, x.dtype)
    for first in range(0, count, BLOCK):
        block[:] = zero
        for r in range(first, min(first + BLOCK, count)):
            row = x[r]
            for f in range(width):
                block[f] += row[f]
        for f in range(width):
            total[f] += block[f]
    for f in range(width):
        mean[f] = total[f] / max(count, 1)
        total[f] = 0
    for first in range(0, count, BLOCK):
        block[:] = zero
        for r in range(first, min(first + BLOCK, count)):
            row = x[r]
            for f in range(width):
                centred = row[f] - mean[f]
                block[f] += centred * centred
        for f in range(width):
            total[f] += block[f]
    scale, shift = np.empty(width, x.dtype), np.empty(width, x.dtype)
    for f in range(width):
        var[f] = total[f] / max(count, 1)
        scale[f] = weight[f] / np.sqrt(var[f] + eps)
        shift[f] = bias[f] - mean[f] * scale[f]
    joined = len(residual) > 0
    for r in range(len(x)):
        row, to = x[r], out[r]
        if r >= count:
            for f in range(width):
                to[f] = residual[r, f] if joined else zero
            continue
        if relu:
            for f in range(width):
                value = row[f] * scale[f] + shift[f]
                to[f] = zero if value <= zero else value
        else:
            for f in range(width):
                to[f] = row[f] * scale[f] + shift[f]
        if joined:
            other = residual[r]
            for f in range(width):
                to[f] += other[f]


@kernel
def backward(
    grad: Array,
    x: Array,
    weight: Array,
    bias: Array,
    mean: Array,
    var: Array,
    count: int,
    eps: float,
    relu: bool,
    dx: Array,
    dweight: Array,
    dbias: Array,
) -> None:
    """Whether ReLU let a value through is found again from the same arithmetic as forward."""
    width, zero = x.shape[1], x.dtype.type(0)
    scale, shift = np.empty(width, x.dtype), np.empty(width, x.dtype)
    inverse = np.empty(width, x.dtype)
    for f in range(width):
        inverse[f] = 1 / np.sqrt(var[f] + eps)
        scale[f] = weight[f] / np.sqrt(var[f] + eps)
        shift[f] = bias[f] - mean[f] * scale[f]
    sums, products = np.zeros(width), np.zeros(width)
    sum_block, product_block = np.empty(width, x.dtype), np.empty(width, x.dtype)
    for first in range(0, count, BLOCK):
        sum_block[:] = zero
        product_block[:] = zero
        for r in range(first, min(first + BLOCK, count)):
            row, g = x[r], grad[r]
            for f in range(width):
                value = row[f] * scale[f] + shift[f]
                part = zero if relu and value <= zero else g[f]
                sum_block[f] += part
                product_block[f] += part * (row[f] - mean[f])
        for f in range(width):
            sums[f] += sum_block[f]
            products[f] += product_block[f]
    share, slope = np.empty(width, x.dtype), np.empty(width, x.dtype)
    for f in range(width):
        dbias[f] = sums[f]
        dweight[f] = products[f] * inverse[f]
        share[f] = sums[f] / max(count, 1)
        slope[f] = products[f] * inverse[f] * inverse[f] / max(count, 1)
    for r in range(len(x)):
        to = dx[r]
        if r >= count:
            for f in range(width):
                to[f] = zero
            continue
        row, g = x[r], grad[r]
        for f in range(width):
            value = row[f] * scale[f] + shift[f]
            part = zero if relu and value <= zero else g[f]
            to[f] = scale[f] * (part - share[f] - slope[f] * (row[f] - mean[f]))
