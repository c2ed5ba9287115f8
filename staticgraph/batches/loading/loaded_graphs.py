"""The graphs of a loader's epoch: one by one, and requested ahead of their batches.

:class:`LoadedGraphs` is what PyG's loaders have as ``loader.dataset``; :func:`announced` requests
what the batches of an order in blocks will read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from staticgraph.epochs.blocks import Blocks
from staticgraph.epochs.epoch import BatchIds
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.joined_parts import read_ahead
from staticgraph.store.on_device import DeviceStore
from staticgraph.store.positions import graph_number


class LoadedGraphs:
    """The graphs that a loader iterates over, by their positions in the store.

    Args:
        store: the store that holds them.
        indices: their positions.
    """

    def __init__(self, store: GraphStore | DeviceStore, indices: np.ndarray) -> None:
        self.store = store
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> Any:
        """Returns one graph as a PyG ``Data`` or ``HeteroData``; -1 is the last one.

        Raises:
            IndexError: there is no such graph.
            ValueError: ``number`` is not a whole number.
        """
        held = self.store.host if isinstance(self.store, DeviceStore) else self.store
        return held[int(self.indices[graph_number(number, len(self))])]


# A block is fetched whole only if a window has at least one in PART of its graphs. Of other blocks
# only the few graphs that were exchanged to balance batches are fetched; fetching these blocks
# whole would request nearly all of the store.
PART = 4


def announced(
    batches: Sequence[BatchIds],
    store: GraphColumns,
    blocks: Blocks,
    ends: Sequence[int],
    ranks: int = 1,
) -> Iterator[BatchIds]:
    """Yields the batches; while those of one window are taken, the blocks of the next are fetched.

    Args:
        batches: of an epoch, as :func:`staticgraph.epochs.blocks.block_order` orders them.
        store: the graphs.
        blocks: how they were drawn.
        ends: the ends of the windows, in batches; the last is the number of batches.
        ranks: how many ranks share each window, and so each of its blocks.
    """
    begin, requested = 0, 0
    for number, end in enumerate(ends):
        for coming in ends[requested : number + 2]:  # this window and the next
            _ask(batches[ends[requested - 1] if requested else 0 : coming], store, blocks, ranks)
            requested += 1
        yield from batches[begin:end]
        begin = end


def _ask(batches: Sequence[BatchIds], store: GraphColumns, blocks: Blocks, ranks: int) -> None:
    """Requests the blocks that the batches of a window read."""
    if not len(batches):
        return
    here = np.concatenate([batch.ids for batch in batches])
    of_block = here // blocks.graphs
    blocks_read, graphs_of = np.unique(of_block, return_counts=True)
    lengths = np.minimum(blocks.graphs, len(store) - blocks_read * blocks.graphs)
    whole = graphs_of * (PART * ranks) >= lengths
    for block in blocks_read[whole].tolist():
        first = block * blocks.graphs
        read_ahead(store, first, min(first + blocks.graphs, len(store)))
    for graph in here[np.isin(of_block, blocks_read[~whole])].tolist():
        read_ahead(store, graph, graph + 1)
