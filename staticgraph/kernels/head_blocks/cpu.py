"""Rows of nodes <-> blocks of heads on the CPU: two plain loops, each other's derivative."""

from __future__ import annotations

from staticgraph.kernels.jit import kernel
from staticgraph.kernels.threads import on_threads
from staticgraph.store.columns import Array


@kernel
def _to_block(
    thread: int, threads: int, rows: Array, first: int, node_of_place: Array, block: Array
) -> None:
    graphs, heads, width, size = block.shape
    for g in range(graphs * thread // threads, graphs * (thread + 1) // threads):
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
def _to_rows(
    thread: int, threads: int, block: Array, node_of_place: Array, first: int, rows: Array
) -> None:
    graphs, heads, width, size = block.shape
    for g in range(graphs * thread // threads, graphs * (thread + 1) // threads):
        for m in range(width):
            node = node_of_place[g * width + m]
            if node >= len(rows):
                continue
            for h in range(heads):
                for d in range(size):
                    rows[node, first + h * size + d] = block[g, h, m, d]


_to_block_on_threads = on_threads(_to_block)
_to_rows_on_threads = on_threads(_to_rows)


@kernel
def to_block(threads: int, rows: Array, first: int, node_of_place: Array, block: Array) -> None:
    """``block [G, H, M, D]`` from columns of ``rows [N, ...]``, ``first`` on; zero without node."""
    _to_block_on_threads(threads, (rows, first, node_of_place, block))


@kernel
def to_rows(threads: int, block: Array, node_of_place: Array, first: int, rows: Array) -> None:
    """Columns of ``rows [N, ...]``, ``first`` on, from ``block [G, H, M, D]``; rows of nodes that
    have no place in it are left alone."""
    _to_rows_on_threads(threads, (block, node_of_place, first, rows))
