"""``graph_attention`` on the CPU: a loop over graphs and heads per direction, without padding.

Molecules have a dozen nodes. Attention in padded blocks computes as many entries again for padding,
and pays for a torch product, mask and softmax around a few microseconds of arithmetic. Here every
product is a row of weights times a small matrix, vectorised (:mod:`staticgraph.kernels.lanes`):
rows that are summed are padded to whole vectors with zero columns, and keys are transposed so that
all keys of a query form one row. Entries after the last key of a graph get weight zero.

Backward processes queries in blocks, so the full matrix of a large graph is never held: a block's
weights and score gradients give its queries their gradients and add to those of keys and values.
The dropout mask is the hash of :mod:`staticgraph.kernels.dropout_sum`, with one key per row and
head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.kernels.cpu_loop import CpuLoop, Indices, Matrix, Pointers
from staticgraph.kernels.exponential import exp
from staticgraph.kernels.lanes import LANES, combine, largest, total
from staticgraph.kernels.threads import portion
from staticgraph.packing.random import STEP, mix
from staticgraph.store.columns import Array

_TOP = np.uint64(40)
# 24 bits of the hash decide, as many as a float32 between 0 and 1 has.
_STEPS = 1 << 24


@kernel_part
def drawn_from(seed: Array, site: int, p: float) -> tuple[Any, Any]:
    """Returns the initial value of a call's hashes, and the threshold from which a weight is
    kept."""
    first = seed[0] if len(seed) > 0 else 0
    return mix(np.uint64(first) + mix(np.uint64(site) * STEP)), np.uint64(p * _STEPS)


@kernel_part
def keep_of(first: int, i: int, heads: int, h: int, start: Any, least: Any, out: Array) -> None:
    """Writes the mask of one query's weights: 1 for kept, 0 for dropped."""
    key = mix(start + np.uint64((first + i) * heads + h) * STEP)
    for j in range(len(out)):
        out[j] = 1 if (mix(key + np.uint64(j) * STEP) >> _TOP) >= least else 0


@kernel_part
def filled(count: int) -> int:
    """Rounds ``count`` up to whole vectors."""
    return -(-count // LANES) * LANES


@kernel_part
def columns_of(
    rows: Array, begin: int, end: int, part: int, h: int, scale: Any, out: Array
) -> None:
    """Writes one part and head of the rows to ``out`` as ``[D, filled]``: transposed, scaled,
    zero-padded."""
    size, nodes = rows.shape[3], end - begin
    wide = filled(nodes)
    for j in range(nodes):
        for d in range(size):
            out[d * wide + j] = scale * rows[begin + j, part, h, d]
    for j in range(nodes, wide):
        for d in range(size):
            out[d * wide + j] = 0


@kernel_part
def rows_of(
    rows: Array, begin: int, end: int, part: int, h: int, out: Array
) -> tuple[Array, int, int]:
    """Returns one part and head of the rows, zero-padded: an array, the offset of its first row,
    and the row stride.

    The rows are copied to ``out`` unless they already are whole vectors.
    """
    _, parts, heads, size = rows.shape
    wide = filled(size)
    if wide == size:
        return rows.reshape(-1), ((begin * parts + part) * heads + h) * size, parts * heads * size
    for j in range(end - begin):
        for d in range(size):
            out[j * wide + d] = rows[begin + j, part, h, d]
        for d in range(size, wide):
            out[j * wide + d] = 0
    return out, 0, wide


@kernel_part
def most_nodes(starts: Array) -> int:
    """Returns the number of nodes of the largest graph, rounded up to whole vectors."""
    most = 0
    for g in range(len(starts) - 1):
        most = max(most, starts[g + 1] - starts[g])
    return filled(most)


@kernel_part
def hide(behind: Array, nodes: int, padded: int) -> None:
    """Writes the initial scores: zero, and minus infinity after the last node."""
    for j in range(nodes):
        behind[j] = 0
    for j in range(nodes, padded):
        behind[j] = -np.inf


@CpuLoop
def forward(
    thread: int,
    threads: int,
    rows: Matrix,
    starts: Pointers,
    seed: Indices,
    heads: int,
    site: int,
    p: float,
    out: Matrix,
    lse: Matrix,
) -> None:
    """Handles one thread's share of the graphs, and of the padding rows."""
    nodes, size = len(rows), rows.shape[1] // (3 * heads)
    low, high = portion(nodes - starts[-1], thread, threads)
    out[starts[-1] + low : starts[-1] + high] = 0
    lse[:, starts[-1] + low : starts[-1] + high] = 0
    rows, out = rows.reshape(nodes, 3, heads, size), out.reshape(nodes, heads, size)
    kind, flat = out.dtype.type, rows.reshape(-1)
    one, scale, rest = kind(1), kind(size**-0.5), kind(1.0 / (1.0 - p))
    start, least = drawn_from(seed, site, p)
    most, wide = most_nodes(starts), filled(size)
    keys, copied = np.empty(size * most, out.dtype), np.empty(most * wide, out.dtype)
    weights, keep = np.empty(most, out.dtype), np.empty(most, out.dtype)
    sums, nothing = np.empty(wide, out.dtype), np.zeros(wide, out.dtype)
    behind = np.zeros(most, out.dtype)
    low, high = portion(len(starts) - 1, thread, threads)
    for g in range(low, high):
        begin, end = starts[g], starts[g + 1]
        nodes = end - begin
        padded = filled(nodes)
        hide(behind, nodes, padded)
        for h in range(heads):
            columns_of(rows, begin, end, 1, h, scale, keys)
            values, origin, by = rows_of(rows, begin, end, 2, h, copied)
            for i in range(nodes):
                node = begin + i
                query = (node * 3 * heads + h) * size
                combine(flat, query, 1, keys, 0, padded, size, weights, 0, padded, behind, 0)
                best = largest(weights, 0, padded)
                for j in range(padded):
                    weights[j] = exp(weights[j] - best)
                whole = total(weights, 0, padded)
                lse[h, node] = best + np.log(whole)
                if p > 0:
                    keep_of(begin, i, heads, h, start, least, keep[:nodes])
                    for j in range(nodes):
                        weights[j] *= rest * keep[j]
                combine(weights, 0, 1, values, origin, by, nodes, sums, 0, wide, nothing, 0)
                share = one / whole
                for d in range(size):
                    out[node, h, d] = share * sums[d]


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
        node, row = begin + i, (i - first) * wide
        query, slope = (node * 3 * heads + h) * size, (node * heads + h) * size
        combine(queries, query, 1, keys, 0, wide, size, weights, row, wide, behind, 0)
        combine(grads, slope, 1, values, 0, wide, size, slopes, row, wide, nothing, 0)
        weight, steep = weights[row : row + wide], slopes[row : row + wide]
        height = lse[h, node]
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
    low, high = portion(nodes - starts[-1], thread, threads)
    drows[starts[-1] + low : starts[-1] + high] = 0
    grad, rows = grad.reshape(nodes, 1, heads, size), rows.reshape(nodes, 3, heads, size)
    gradient = drows.reshape(nodes, 3, heads, size)
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
    low, high = portion(len(starts) - 1, thread, threads)
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
                    row, node = i * padded, begin + first + i
                    combine(slopes, row, 1, keys, k, by, nodes, query, 0, wide, nothing, 0)
                    for d in range(size):
                        gradient[node, 0, h, d] = query[d]
                a, b = q + first * by, s + first * of
                for j in range(nodes):
                    to = j * wide
                    sums = of_keys
                    combine(slopes, j, padded, queries, a, by, count, sums, to, wide, sums, to)
                    sums = of_values
                    combine(weights, j, padded, grads, b, of, count, sums, to, wide, sums, to)
            for j in range(nodes):
                for d in range(size):
                    gradient[begin + j, 1, h, d] = of_keys[j * wide + d]
                for d in range(size):
                    gradient[begin + j, 2, h, d] = of_values[j * wide + d]
