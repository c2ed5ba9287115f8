"""Node rows to blocks of heads and back on the CPU: two plain loops, each the other's
derivative."""

from __future__ import annotations

from staticgraph.jit import kernel
from staticgraph.store.columns import Array


@kernel
def to_block(rows: Array, first: int, node_of_place: Array, block: Array) -> None:
    """Fills ``block [G, H, M, D]`` from columns of ``rows [N, ...]`` from ``first`` on; places
    without a node are zero."""
    graphs, heads, width, size = block.shape
    for g in range(graphs):
        for m in range(width):
            node = node_of_place[g * width + m]
            if node < len(rows):
                for h in range(heads):
                    for d in range(size):
                        block[g, h, m, d] = rows[node, first + h * size + d]
            else:
                for h in range(heads):
                    for d in range(size):
                        block[g, h, m, d] = 0


@kernel
def to_rows(block: Array, node_of_place: Array, first: int, rows: Array) -> None:
    """Fills columns of ``rows [N, ...]`` from ``first`` on from ``block [G, H, M, D]``; rows of
    nodes without a place in the block are not touched."""
    graphs, heads, width, size = block.shape
    for g in range(graphs):
        for m in range(width):
            node = node_of_place[g * width + m]
            if node >= len(rows):
                continue
            for h in range(heads):
                for d in range(size):
                    rows[node, first + h * size + d] = block[g, h, m, d]
