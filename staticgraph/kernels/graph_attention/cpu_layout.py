"""How ``graph_attention`` lays out one head of a graph on a CPU, and its dropout mask.

Rows for :mod:`staticgraph.kernels.lanes` are whole vectors: rows that are summed are padded with
zero columns, and keys are transposed so that all keys of a query form one row.

The dropout mask is the hash of :mod:`staticgraph.kernels.dropout_sum`, with one key per row and
head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.jit import kernel_part
from staticgraph.kernels.lanes import LANES
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
    found = 0
    for g in range(len(starts) - 1):
        found = max(found, starts[g + 1] - starts[g])
    return filled(found)


@kernel_part
def hide(behind: Array, nodes: int, padded: int) -> None:
    """Writes the initial scores: zero, and minus infinity after the last node."""
    for j in range(nodes):
        behind[j] = 0
    for j in range(nodes, padded):
        behind[j] = -np.inf
