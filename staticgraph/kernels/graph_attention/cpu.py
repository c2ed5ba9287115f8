"""``graph_attention`` on the CPU: a loop over graphs and heads per direction, without padding.

Molecules have a dozen nodes. Attention in padded blocks computes as many entries again for padding,
and pays for a torch product, mask and softmax around a few microseconds of arithmetic. Here every
product is a row of weights times a small matrix, vectorised (:mod:`staticgraph.kernels.lanes`);
entries after the last key of a graph get weight zero.
"""

from __future__ import annotations

import numpy as np

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
from staticgraph.kernels.lanes import combine, largest, total
from staticgraph.kernels.threads import portion


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
    low, high = portion(nodes - starts[-1], 1, thread, threads)
    out[starts[-1] + low : starts[-1] + high] = 0
    lse[:, starts[-1] + low : starts[-1] + high] = 0
    rows, out = rows.reshape(nodes, 3, heads, size), out.reshape(nodes, heads, size)
    kind, flat = out.dtype.type, rows.reshape(-1)
    one, scale, rest = kind(1), kind(size**-0.5), kind(1.0 / (1.0 - p))
    start, least = drawn_from(seed, site, p)
    most, wide = most_nodes(starts), filled(size)
    keys, copied = np.empty(size * most, out.dtype), np.empty(most * wide, out.dtype)
    weights, keep = np.empty(most, out.dtype), np.empty(most, out.dtype)
    found, nothing = np.empty(wide, out.dtype), np.zeros(wide, out.dtype)
    behind = np.zeros(most, out.dtype)
    low, high = portion(len(starts) - 1, 1, thread, threads)
    for g in range(low, high):
        begin, end = starts[g], starts[g + 1]
        nodes = end - begin
        padded = filled(nodes)
        hide(behind, nodes, padded)
        for h in range(heads):
            columns_of(rows, begin, end, 1, h, scale, keys)
            values, origin, by = rows_of(rows, begin, end, 2, h, copied)
            for i in range(nodes):
                at = begin + i
                query = (at * 3 * heads + h) * size
                combine(flat, query, 1, keys, 0, padded, size, weights, 0, padded, behind, 0)
                best = largest(weights, 0, padded)
                for j in range(padded):
                    weights[j] = exp(weights[j] - best)
                whole = total(weights, 0, padded)
                lse[h, at] = best + np.log(whole)
                if p > 0:
                    keep_of(begin, i, heads, h, start, least, keep[:nodes])
                    for j in range(nodes):
                        weights[j] *= rest * keep[j]
                combine(weights, 0, 1, values, origin, by, nodes, found, 0, wide, nothing, 0)
                share = one / whole
                for d in range(size):
                    out[at, h, d] = share * found[d]
