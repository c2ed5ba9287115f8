"""``pair_score`` on one core: one loop over destinations per direction, nothing of size
``[E, H * C]``.

``edge`` and ``own`` are empty if not given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import inlined
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers
from staticgraph.kernels.lanes import total
from staticgraph.store.columns import Array


@inlined
def _weighed(
    left: Array,
    j: int,
    right: Array,
    i: int,
    more: Array,
    r: int,
    weight: Array,
    slope: Any,
    zero: Any,
    value: Array,
) -> None:
    """Writes ``weight * leaky_relu(left[j] + right[i] + more[r])``, all heads in one row.

    It is a single loop that can be vectorised, which makes it ten times as fast.
    """
    for f in range(len(value)):
        part = left[j, f] + right[i, f] + more[r, f]
        value[f] = weight[f] * (part if part > zero else slope * part)


@inlined
def _summed(value: Array, sums: Array, row: int) -> None:
    """Sums the columns of each head."""
    heads = sums.shape[1]
    width = len(value) // heads
    for h in range(heads):
        sums[row, h] = total(value, h * width, width)


@CpuLoop
def forward(
    left: Matrix,
    right: Matrix,
    weight: Matrix,
    edge: Matrix,
    own: Matrix,
    src: Indices,
    row_ptr: Pointers,
    slope: float,
    score: Matrix,
    loop: Matrix,
) -> None:
    """Runs forward."""
    nodes, columns = left.shape
    zero, tilt = left.dtype.type(0), left.dtype.type(slope)
    weights, value = weight.reshape(columns), np.empty(columns, left.dtype)
    nothing = np.zeros((1, columns), left.dtype)
    edged, owned = len(edge) > 0, len(own) > 0
    edges, owns = edge if edged else nothing, own if owned else nothing
    for i in range(nodes):
        r = i if owned else 0
        _weighed(left, i, right, i, owns, r, weights, tilt, zero, value)
        _summed(value, loop, i)
        for e in range(row_ptr[i], row_ptr[i + 1]):
            r = e if edged else 0
            _weighed(left, src[e], right, i, edges, r, weights, tilt, zero, value)
            _summed(value, score, e)


@inlined
def _slopes(
    left: Array,
    j: int,
    right: Array,
    i: int,
    more: Array,
    r: int,
    weight: Array,
    grad: Array,
    row: int,
    tilt: Any,
    zero: Any,
    value: Array,
    steep: Array,
    dweight: Array,
    dleft: Array,
    dright: Array,
) -> None:
    """Propagates the gradient ``grad[row]`` of one score to what it was computed from, and leaves
    that of the row of ``more`` in ``value``. Every loop has few enough arrays to be vectorised."""
    heads = grad.shape[1]
    width = len(value) // heads
    for h in range(heads):
        for c in range(width):
            steep[h * width + c] = grad[row, h]
    for f in range(len(value)):
        value[f] = left[j, f] + right[i, f] + more[r, f]
    for f in range(len(value)):
        sum_, part = value[f], steep[f] * weight[f]
        dweight[f] += steep[f] * (sum_ if sum_ > zero else tilt * sum_)
        value[f] = part if sum_ > zero else tilt * part
    for f in range(len(value)):
        dleft[j, f] += value[f]
        dright[i, f] += value[f]


@CpuLoop
def backward(
    grad_score: Matrix,
    grad_loop: Matrix,
    left: Matrix,
    right: Matrix,
    weight: Matrix,
    edge: Matrix,
    own: Matrix,
    src: Indices,
    row_ptr: Pointers,
    slope: float,
    dleft: Matrix,
    dright: Matrix,
    dweight: Matrix,
    dedge: Matrix,
    down: Matrix,
) -> None:
    """Runs backward."""
    nodes, columns = left.shape
    zero, tilt = left.dtype.type(0), left.dtype.type(slope)
    weights, dweights = weight.reshape(columns), dweight.reshape(columns)
    value, steep = np.empty(columns, left.dtype), np.empty(columns, left.dtype)
    nothing = np.zeros((1, columns), left.dtype)
    edged, owned = len(edge) > 0, len(own) > 0
    edges, owns = edge if edged else nothing, own if owned else nothing
    dleft[:], dright[:], dweight[:] = 0, 0, 0
    for i in range(nodes):
        r = i if owned else 0
        _slopes(
            left,
            i,
            right,
            i,
            owns,
            r,
            weights,
            grad_loop,
            i,
            tilt,
            zero,
            value,
            steep,
            dweights,
            dleft,
            dright,
        )
        if owned:
            for f in range(columns):
                down[i, f] = value[f]
        for e in range(row_ptr[i], row_ptr[i + 1]):
            r = e if edged else 0
            _slopes(
                left,
                src[e],
                right,
                i,
                edges,
                r,
                weights,
                grad_score,
                e,
                tilt,
                zero,
                value,
                steep,
                dweights,
                dleft,
                dright,
            )
            if edged:
                for f in range(columns):
                    dedge[e, f] = value[f]
