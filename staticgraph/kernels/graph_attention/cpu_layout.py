"""How ``graph_attention`` lays out one head of a graph on a CPU, and which weights it keeps.

Rows for :mod:`staticgraph.kernels.lanes` are whole vectors: what is summed of rows has its columns
filled up with zeros, and keys are turned, so that all keys of a query are one row.

A weight's fate is the hash of :mod:`staticgraph.kernels.dropout_sum`, one key a row and head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.kernels.jit import kernel
from staticgraph.kernels.lanes import LANES
from staticgraph.packing.random import STEP, mix
from staticgraph.store.columns import Array

_TOP = np.uint64(40)
# Of the hash 24 bits decide, as many as a float32 between 0 and 1 has.
_STEPS = 1 << 24


@kernel
def drawn_from(seed: int, site: int, p: float) -> tuple[Any, Any]:
    """Where the hashes of a call begin, and the least that keeps a weight."""
    return mix(np.uint64(seed) + mix(np.uint64(site) * STEP)), np.uint64(p * _STEPS)


@kernel
def keep_of(first: int, i: int, heads: int, h: int, start: Any, least: Any, out: Array) -> None:
    """Which of a query's weights are kept: one or zero."""
    key = mix(start + np.uint64((first + i) * heads + h) * STEP)
    for j in range(len(out)):
        out[j] = 1 if (mix(key + np.uint64(j) * STEP) >> _TOP) >= least else 0


@kernel
def filled(count: int) -> int:
    """Up to whole vectors."""
    return -(-count // LANES) * LANES


@kernel
def columns_of(
    rows: Array, begin: int, end: int, part: int, h: int, scale: Any, out: Array
) -> None:
    """``out``, as ``[D, filled]``: so often one part and head of rows, turned; zeros behind."""
    size, nodes = rows.shape[3], end - begin
    wide = filled(nodes)
    for j in range(nodes):
        for d in range(size):
            out[d * wide + j] = scale * rows[begin + j, part, h, d]
    for j in range(nodes, wide):
        for d in range(size):
            out[d * wide + j] = 0


@kernel
def rows_of(
    rows: Array, begin: int, end: int, part: int, h: int, out: Array
) -> tuple[Array, int, int]:
    """One part and head of rows, filled up with zeros: an array, its first row's place, and how far
    rows are apart. They are copied to ``out`` unless they are whole vectors already."""
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


@kernel
def most_nodes(starts: Array) -> int:
    """Nodes of the largest graph, up to whole vectors."""
    found = 0
    for g in range(len(starts) - 1):
        found = max(found, starts[g + 1] - starts[g])
    return filled(found)


@kernel
def hide(behind: Array, nodes: int, padded: int) -> None:
    """What scores start from: nothing can be seen behind the last node."""
    for j in range(nodes):
        behind[j] = 0
    for j in range(nodes, padded):
        behind[j] = -np.inf
