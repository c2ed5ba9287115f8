"""Rows of nodes <-> blocks of heads on one core: two plain loops, each other's derivative."""

from __future__ import annotations

from staticgraph.kernels.jit import kernel
from staticgraph.store.columns import Array


@kernel
def to_block(rows: Array, first: int, node_of_place: Array, block: Array) -> None:
    """``block [G, H, M, D]`` from columns of ``rows [N, ...]``, ``first`` on; zero without node."""
    graphs, heads, width, size = block.shape
    for g in range(graphs):
        for m in range(width):
            node = node_of_place[g * width + m]
            for h in range(heads):
                for d in range(size):
                    block[g, h, m, d] = rows[node, first + h * size + d] if node < len(rows) else 0


@kernel
def to_rows(block: Array, place_of_node: Array, first: int, rows: Array) -> None:
    """Columns of ``rows [N, ...]``, ``first`` on, from ``block [G, H, M, D]``; else zero."""
    graphs, heads, width, size = block.shape
    for node in range(len(rows)):
        place = place_of_node[node]
        inside = place < graphs * width
        g, m = place // width, place % width
        for h in range(heads):
            for d in range(size):
                rows[node, first + h * size + d] = block[g, h, m, d] if inside else 0
