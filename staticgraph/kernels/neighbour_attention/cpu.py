"""``neighbour_attention`` on one core: loops over destinations both ways.

``pair``, ``edge`` and ``own`` are empty if not given. Forward computes all scores first, then all
exponentials in one vectorised loop, then the sums. The attention weights are kept for backward,
since an exponential costs more than reading one. Backward computes ``grad . out`` of a node before
its edges, and scatters as it goes: on one core the order of additions is fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import Block, CpuLoop, Indices, Matrix, Pointers
from staticgraph.kernels.exponential import exp
from staticgraph.kernels.lanes import dot
from staticgraph.store.columns import Array


@kernel_part
def _leaky(value: Any, slope: Any) -> Any:
    return value if value > 0 else slope * value


@kernel_part
def _turned(pair: Array, place: int, out: Array) -> None:
    """Writes one side of ``pair [H, N, 2]`` to ``out [N, H]``; zeros without a pair."""
    nodes, heads = out.shape
    for i in range(nodes):
        for h in range(heads):
            out[i, h] = pair[h, i, place] if len(pair) > 0 else 0


@kernel_part
def _exponentials(values: Array) -> None:
    flat = values.reshape(-1)
    for k in range(len(flat)):
        flat[k] = exp(flat[k])


@CpuLoop
def forward(
    x: Matrix,
    pair: Block,
    edge: Matrix,
    own: Matrix,
    src: Indices,
    row_ptr: Pointers,
    heads: int,
    slope: float,
    loops: bool,
    out: Matrix,
    share: Matrix,
    own_share: Matrix,
) -> None:
    """Runs forward."""
    nodes, width = len(x), x.shape[1] // heads
    x, out = x.reshape(nodes, heads, width), out.reshape(nodes, heads, width)
    kind = x.dtype.type
    zero, one, tilt, lowest = kind(0), kind(1), kind(slope), kind(-np.inf)
    left, right = np.empty((nodes, heads), x.dtype), np.empty((nodes, heads), x.dtype)
    _turned(pair, 0, left)
    _turned(pair, 1, right)
    edged, looped = edge.shape[0] > 0, own.shape[0] > 0
    best, total = np.empty(heads, x.dtype), np.empty(heads, x.dtype)
    for i in range(nodes):
        first, last = row_ptr[i], row_ptr[i + 1]
        for h in range(heads):
            best[h] = lowest
        if loops:
            for h in range(heads):
                value = left[i, h] + right[i, h] + (own[i, h] if looped else zero)
                value = _leaky(value, tilt)
                own_share[i, h] = value
                best[h] = value
        for e in range(first, last):
            j = src[e]
            if loops and j == i:
                for h in range(heads):
                    share[e, h] = lowest
                continue
            for h in range(heads):
                value = left[j, h] + right[i, h] + (edge[e, h] if edged else zero)
                value = _leaky(value, tilt)
                share[e, h] = value
                most = best[h]
                best[h] = value if value > most or value != value else most
        if loops:
            for h in range(heads):
                own_share[i, h] -= best[h]
        for e in range(first, last):
            if loops and src[e] == i:
                continue
            for h in range(heads):
                share[e, h] -= best[h]
    _exponentials(share)
    _exponentials(own_share)
    for i in range(nodes):
        first, last = row_ptr[i], row_ptr[i + 1]
        for h in range(heads):
            total[h] = own_share[i, h] if loops else zero
        for e in range(first, last):
            for h in range(heads):
                total[h] += share[e, h]
        for h in range(heads):
            total[h] = one / total[h]
        for h in range(heads):
            if loops:
                own_share[i, h] *= total[h]
                part = own_share[i, h]
                for c in range(width):
                    out[i, h, c] = part * x[i, h, c]
            else:
                for c in range(width):
                    out[i, h, c] = zero
        for e in range(first, last):
            j = src[e]
            for h in range(heads):
                part = share[e, h] * total[h]
                share[e, h] = part
                for c in range(width):
                    out[i, h, c] += part * x[j, h, c]


@CpuLoop
def backward(
    grad: Matrix,
    x: Matrix,
    out: Matrix,
    share: Matrix,
    own_share: Matrix,
    pair: Block,
    edge: Matrix,
    own: Matrix,
    src: Indices,
    row_ptr: Pointers,
    heads: int,
    slope: float,
    loops: bool,
    dx: Matrix,
    dpair: Block,
    dedge: Matrix,
    down: Matrix,
) -> None:
    """Runs backward."""
    nodes, width = len(x), x.shape[1] // heads
    grad, dx = grad.reshape(nodes, heads, width), dx.reshape(nodes, heads, width)
    dx[:] = 0
    kind = x.dtype.type
    zero, one, tilt = kind(0), kind(1), kind(slope)
    paired, edged, looped = pair.shape[0] > 0, edge.shape[0] > 0, own.shape[0] > 0
    left, right = np.empty((nodes, heads), x.dtype), np.empty((nodes, heads), x.dtype)
    _turned(pair, 0, left)
    _turned(pair, 1, right)
    dleft, dright = np.zeros((nodes, heads), x.dtype), np.zeros((nodes, heads), x.dtype)
    flat, grads, outs = x.reshape(-1), grad.reshape(-1), out.reshape(-1)
    mean = np.empty(heads, x.dtype)
    for i in range(nodes):
        for h in range(heads):
            row = (i * heads + h) * width
            mean[h] = dot(grads, row, outs, row, width)
        if loops:
            for h in range(heads):
                part, row = own_share[i, h], (i * heads + h) * width
                for c in range(width):
                    dx[i, h, c] += part * grad[i, h, c]
                value = part * (dot(grads, row, flat, row, width) - mean[h])
                score = left[i, h] + right[i, h] + (own[i, h] if looped else zero)
                value *= one if score > zero else tilt
                down[i, h] = value
                dleft[i, h] += value
                dright[i, h] += value
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j = src[e]
            for h in range(heads):
                part = share[e, h]  # zero for an edge that is a self-loop
                row, other = (i * heads + h) * width, (j * heads + h) * width
                for c in range(width):
                    dx[j, h, c] += part * grad[i, h, c]
                value = part * (dot(grads, row, flat, other, width) - mean[h])
                score = left[j, h] + right[i, h] + (edge[e, h] if edged else zero)
                value *= one if score > zero else tilt
                dedge[e, h] = value
                dleft[j, h] += value
                dright[i, h] += value
    if paired:
        for i in range(nodes):
            for h in range(heads):
                dpair[h, i, 0] = dleft[i, h]
                dpair[h, i, 1] = dright[i, h]
