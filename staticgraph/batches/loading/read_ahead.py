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
    batches: Sequence[BatchIds],
    store: GraphColumns,
    blocks: Blocks,
    ends: Sequence[int],
    ranks: int = 1,
) -> Iterator[BatchIds]:
    """The batches. While those of one window are taken, the blocks of the next are fetched.

    Args:
        batches: of an epoch, as :func:`staticgraph.epochs.blocks.block_order` has them.
        store: the graphs.
        blocks: how they were drawn.
        ends: of the windows, in batches; the last is how many there are.
        ranks: that share each window, and so each of its blocks.
    """
    begin, asked = 0, 0
    for number, end in enumerate(ends):
        for coming in ends[asked : number + 2]:  # this window and the next
            _ask(batches[ends[asked - 1] if asked else 0 : coming], store, blocks, ranks)
            asked += 1
        yield from batches[begin:end]
        begin = end


def _ask(batches: Sequence[BatchIds], store: GraphColumns, blocks: Blocks, ranks: int) -> None:
    """Asks for the blocks of the batches of a window."""
    if not len(batches):
        return
    here = np.concatenate([batch.ids for batch in batches])
    of_block = here // blocks.graphs
    found, graphs_of = np.unique(of_block, return_counts=True)
    lengths = np.minimum(blocks.graphs, len(store) - found * blocks.graphs)
    whole = graphs_of * (PART * ranks) >= lengths
    for block in found[whole].tolist():
        first = block * blocks.graphs
        read_ahead(store, first, min(first + blocks.graphs, len(store)))
    for graph in here[np.isin(of_block, found[~whole])].tolist():
        read_ahead(store, graph, graph + 1)
