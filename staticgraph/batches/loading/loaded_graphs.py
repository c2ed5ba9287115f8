"""The graphs of a loader's epoch, one by one: what PyG's loaders have as ``loader.dataset``."""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgraph.store.graph_store import GraphStore
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
