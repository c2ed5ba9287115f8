"""Batches of an order in blocks, with what they will read asked for beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from staticgraph.epochs.blocks import Blocks
from staticgraph.epochs.epoch import BatchIds
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.read_ahead import read_ahead

# A block of which a window has less than one of so many graphs is not its own: a few came from
# there in exchange, to balance batches, and only these are fetched. A window that fetched the whole
# block of each asked for nearly all of the store.
PART = 4


def announced(
    batches: Sequence[BatchIds], store: GraphColumns, blocks: Blocks
) -> Iterator[BatchIds]:
    """The batches. While those of one window are taken, the blocks of the next are fetched.

    Args:
        batches: of an epoch, as :func:`staticgraph.epochs.blocks.block_order` has them.
        store: the graphs.
        blocks: how they were drawn.
    """
    begin, asked = 0, 0
    ends: list[int] = []
    while begin < len(batches):
        while len(ends) < 2 and asked < len(batches):  # this window and the next
            asked = _ask(batches, asked, store, blocks)
            ends.append(asked)
        end = ends.pop(0)
        yield from batches[begin:end]
        begin = end


def _ask(batches: Sequence[BatchIds], begin: int, store: GraphColumns, blocks: Blocks) -> int:
    """Asks for the blocks of so many batches as make a window; the first batch after them."""
    ids, graphs, end = [], 0, begin
    while end < len(batches) and (graphs < blocks.mixed or end == begin):
        ids.append(batches[end].ids)
        graphs += max(1, len(ids[-1]))
        end += 1
    here = np.concatenate(ids)
    of_block = here // blocks.graphs
    found, graphs_of = np.unique(of_block, return_counts=True)
    whole = graphs_of * PART >= np.minimum(blocks.graphs, len(store) - found * blocks.graphs)
    for block in found[whole].tolist():
        first = block * blocks.graphs
        read_ahead(store, first, min(first + blocks.graphs, len(store)))
    for graph in here[np.isin(of_block, found[~whole])].tolist():
        read_ahead(store, graph, graph + 1)
    return end
