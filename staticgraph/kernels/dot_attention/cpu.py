"""``dot_attention`` on one core: loops over destinations each way, nothing of size ``[E, H * C]``.

``key_edge`` and ``value_edge`` are the rows of edges as keys and as values have them: a row of
zeros where they have none, read by all. Forward takes all scores first, then all exponentials in
one loop of the vector unit, then the sums. The shares are kept for the way back. Each loop over
columns has few arrays and no branch, and sums of products are eight side by side, which is what the
vector unit takes; backward spreads the numbers a head over its columns first, so that those loops
run over whole rows. It scatters as it goes: one core adds in one order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.kernels.exponential import exp
from staticgraph.kernels.jit import inlined, kernel
from staticgraph.store.columns import Array


@inlined
def _products(left: Array, right: Array, more: Array, factor: Any, zero: Any, found: Array) -> None:
    """``found[h] = factor * sum over the head's columns of left * (right + more)``."""
    width = len(left) // len(found)
    for h in range(len(found)):
        first, last = h * width, (h + 1) * width
        whole = last - width % 8
        a = b = c = d = p = q = r = s = zero
        for f in range(first, whole, 8):
            a += left[f] * (right[f] + more[f])
            b += left[f + 1] * (right[f + 1] + more[f + 1])
            c += left[f + 2] * (right[f + 2] + more[f + 2])
            d += left[f + 3] * (right[f + 3] + more[f + 3])
            p += left[f + 4] * (right[f + 4] + more[f + 4])
            q += left[f + 5] * (right[f + 5] + more[f + 5])
            r += left[f + 6] * (right[f + 6] + more[f + 6])
            s += left[f + 7] * (right[f + 7] + more[f + 7])
        for f in range(whole, last):
            a += left[f] * (right[f] + more[f])
        found[h] = factor * (((a + b) + (c + d)) + ((p + q) + (r + s)))


@inlined
def _spread(numbers: Array, row: Array) -> None:
    """A number a head, over the columns of each."""
    width = len(row) // len(numbers)
    for h in range(len(numbers)):
        number = numbers[h]
        for f in range(h * width, (h + 1) * width):
            row[f] = number


@kernel
def forward(
    query: Array,
    key: Array,
    value: Array,
    key_edge: Array,
    value_edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    heads: int,
    scale: float,
    out: Array,
    share: Array,
) -> None:
    """Every element of ``out [N, H * D]`` and ``share [E, H]`` is written."""
    nodes, columns = out.shape
    kind = out.dtype.type
    zero, one, factor, lowest = kind(0), kind(1), kind(scale), kind(-np.inf)
    coded, by_key, by_value = len(code) > 0, len(key_edge) > 1, len(value_edge) > 1
    best, total, by = (
        np.empty(heads, out.dtype),
        np.empty(heads, out.dtype),
        np.empty(columns, out.dtype),
    )
    for i in range(nodes):
        first, last = row_ptr[i], row_ptr[i + 1]
        for h in range(heads):
            best[h] = lowest
        mine = query[i]
        for e in range(first, last):
            r = code[e] if coded else e
            found = share[e]
            _products(mine, key[src[e]], key_edge[r if by_key else 0], factor, zero, found)
            for h in range(heads):
                most = best[h]
                best[h] = found[h] if found[h] > most or found[h] != found[h] else most
        for e in range(first, last):
            for h in range(heads):
                share[e, h] -= best[h]
    flat = share.reshape(-1)
    for k in range(len(flat)):
        flat[k] = exp(flat[k])
    for i in range(nodes):
        first, last = row_ptr[i], row_ptr[i + 1]
        row = out[i]
        for f in range(columns):
            row[f] = zero
        for h in range(heads):
            total[h] = zero
        for e in range(first, last):
            for h in range(heads):
                total[h] += share[e, h]
        for h in range(heads):
            total[h] = one / total[h]
        for e in range(first, last):
            r = code[e] if coded else e
            for h in range(heads):
                share[e, h] *= total[h]
            _spread(share[e], by)
            theirs, more = value[src[e]], value_edge[r if by_value else 0]
            for f in range(columns):
                row[f] += by[f] * (theirs[f] + more[f])


@kernel
def backward(
    grad: Array,
    out: Array,
    share: Array,
    query: Array,
    key: Array,
    value: Array,
    key_edge: Array,
    value_edge: Array,
    code: Array,
    src: Array,
    row_ptr: Array,
    scale: float,
    to_key: bool,
    to_value: bool,
    dquery: Array,
    dkey: Array,
    dvalue: Array,
    dedge: Array,
) -> None:
    """The gradients come zeroed; ``dedge`` has no rows where it is not wanted."""
    nodes, columns = out.shape
    heads, width = share.shape[1], query.shape[1]
    kind = out.dtype.type
    zero, one, factor = kind(0), kind(1), kind(scale)
    coded, by_key, by_value = len(code) > 0, len(key_edge) > 1, len(value_edge) > 1
    edged, nothing = len(dedge) > 0, np.zeros(columns, out.dtype)
    mean, slope = np.empty(heads, out.dtype), np.empty(heads, out.dtype)
    part, steep = np.empty(columns, out.dtype), np.empty(width, out.dtype)
    for i in range(nodes):
        ours, mine, total = grad[i], query[i], dquery[i]
        _products(ours, out[i], nothing, one, zero, mean)
        for e in range(row_ptr[i], row_ptr[i + 1]):
            j, r = src[e], code[e] if coded else e
            _products(ours, value[j], value_edge[r if by_value else 0], one, zero, slope)
            for h in range(heads):
                slope[h] = factor * share[e, h] * (slope[h] - mean[h])
            _spread(slope, steep)
            _spread(share[e], part)
            theirs, more = key[j], key_edge[r if by_key else 0]
            for f in range(width):
                total[f] += steep[f] * (theirs[f] + more[f])
            found = dkey[j]
            for f in range(width):
                found[f] += steep[f] * mine[f]
            found = dvalue[j]
            for f in range(columns):
                found[f] += part[f] * ours[f]
            if edged:
                found = dedge[r]
                if to_key:
                    for f in range(width):
                        found[f] += steep[f] * mine[f]
                if to_value:
                    for f in range(columns):
                        found[f] += part[f] * ours[f]
