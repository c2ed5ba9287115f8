"""The backward of ``graph_attention`` on the CPU.

Queries are processed in blocks, so the full matrix of a large graph is never held: a block's
weights and score gradients give its queries their gradients and add to those of keys and values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers
from staticgraph.kernels.exponential import exp
from staticgraph.kernels.graph_attention.cpu_layout import (
    columns_of,
    drawn_from,
    filled,
    hide,
    keep_of,
    most_nodes,
    rows_of,
)
from staticgraph.kernels.lanes import combine, total
from staticgraph.kernels.threads import portion
from staticgraph.store.columns import Array

# Queries per block, whose weights and score gradients are held at once.
QUERIES = 64


@kernel_part
def _slopes(
    rows: Array,
    grad: Array,
    lse: Array,
    places: tuple[int, int, int, int],
    turned: tuple[Array, Array],
    behind: Array,
    dropout: tuple[Any, Any, float],
    scratch: tuple[Array, Array],
    weights: Array,
    slopes: Array,
) -> None:
    """Computes attention weights and score gradients for a block of queries of one graph and head.

    ``places`` are the graph's first row, the block's first and last query in it, and the head;
    ``turned`` are keys and values transposed to columns, with keys scaled; ``weights`` and
    ``slopes`` get one row per query, as wide as ``behind``.
    """
    begin, first, last, h = places
    keys, values = turned
    start, least, p = dropout
    keep, terms = scratch
    _, _, heads, size = rows.shape
    kind, queries, grads = grad.dtype.type, rows.reshape(-1), grad.reshape(-1)
    scale, rest, wide = kind(size**-0.5), kind(1.0 / (1.0 - p)), len(behind)
    nothing = np.zeros(wide, kind)
    for i in range(first, last):
        at, row = begin + i, (i - first) * wide
        query, slope = (at * 3 * heads + h) * size, (at * heads + h) * size
        combine(queries, query, 1, keys, 0, wide, size, weights, row, wide, behind, 0)
        combine(grads, slope, 1, values, 0, wide, size, slopes, row, wide, nothing, 0)
        weight, steep = weights[row : row + wide], slopes[row : row + wide]
        height = lse[h, at]
        for j in range(wide):
            weight[j] = exp(weight[j] - height)
        if p > 0:
            keep_of(begin, i, heads, h, start, least, keep)
            for j in range(len(keep)):
                keep[j] *= rest
                steep[j] *= keep[j]
        # Their mean rather than grad . out, which equals it up to rounding: score gradients then
        # sum to zero, so half as much precision is lost.
        for j in range(wide):
            terms[j] = weight[j] * steep[j]
        mean = total(terms, 0, wide)
        for j in range(wide):
            steep[j] = scale * weight[j] * (steep[j] - mean)
        if p > 0:
            for j in range(len(keep)):
                weight[j] *= keep[j]


@CpuLoop
def backward(
    thread: int,
    threads: int,
    grad: Matrix,
    rows: Matrix,
    lse: Matrix,
    starts: Pointers,
    seed: Indices,
    heads: int,
    site: int,
    p: float,
    drows: Matrix,
) -> None:
    """Handles one thread's share of the graphs, and of the padding rows."""
    nodes, size = len(rows), rows.shape[1] // (3 * heads)
    low, high = portion(nodes - starts[-1], 1, thread, threads)
    drows[starts[-1] + low : starts[-1] + high] = 0
    grad, rows = grad.reshape(nodes, 1, heads, size), rows.reshape(nodes, 3, heads, size)
    found = drows.reshape(nodes, 3, heads, size)
    kind = grad.dtype.type
    one, scale = kind(1), kind(size**-0.5)
    start, least = drawn_from(seed, site, p)
    dropout = start, least, p
    most, wide = most_nodes(starts), filled(size)
    key_columns, value_columns = np.empty(size * most, kind), np.empty(size * most, kind)
    copies = np.empty((3, most * wide), kind)
    query, nothing = np.empty(wide, kind), np.zeros(wide, kind)
    of_keys, of_values = np.empty(most * wide, kind), np.empty(most * wide, kind)
    weights, slopes = np.empty(QUERIES * most, kind), np.empty(QUERIES * most, kind)
    keep, terms, behind = np.empty(most, kind), np.empty(most, kind), np.empty(most, kind)
    low, high = portion(len(starts) - 1, 1, thread, threads)
    for g in range(low, high):
        begin, end = starts[g], starts[g + 1]
        nodes = end - begin
        padded = filled(nodes)
        hide(behind, nodes, padded)
        for h in range(heads):
            columns_of(rows, begin, end, 1, h, scale, key_columns)
            columns_of(rows, begin, end, 2, h, one, value_columns)
            queries, q, by = rows_of(rows, begin, end, 0, h, copies[0])
            keys, k, by = rows_of(rows, begin, end, 1, h, copies[1])
            grads, s, of = rows_of(grad, begin, end, 0, h, copies[2])
            of_keys[: nodes * wide] = 0
            of_values[: nodes * wide] = 0
            for first in range(0, nodes, QUERIES):
                last = min(first + QUERIES, nodes)
                _slopes(
                    rows,
                    grad,
                    lse,
                    (begin, first, last, h),
                    (key_columns, value_columns),
                    behind[:padded],
                    dropout,
                    (keep[:nodes], terms),
                    weights,
                    slopes,
                )
                count = last - first
                for i in range(count):
                    row, at = i * padded, begin + first + i
                    combine(slopes, row, 1, keys, k, by, nodes, query, 0, wide, nothing, 0)
                    for d in range(size):
                        found[at, 0, h, d] = query[d]
                a, b = q + first * by, s + first * of
                for j in range(nodes):
                    to = j * wide
                    sums = of_keys
                    combine(slopes, j, padded, queries, a, by, count, sums, to, wide, sums, to)
                    sums = of_values
                    combine(weights, j, padded, grads, b, of, count, sums, to, wide, sums, to)
            for j in range(nodes):
                for d in range(size):
                    found[begin + j, 1, h, d] = of_keys[j * wide + d]
                for d in range(size):
                    found[begin + j, 2, h, d] = of_values[j * wide + d]
