"""Batches of an order in blocks, with what they will read asked for beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from staticgraph.epochs.blocks import Blocks
from staticgraph.epochs.epoch import BatchIds
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.read_ahead import read_ahead


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
    for block in np.unique(np.concatenate(ids) // blocks.graphs).tolist():
        first = block * blocks.graphs
        read_ahead(store, first, min(first + blocks.graphs, len(store)))
    return end
