"""A data set of many graphs: its columns, where they come from, and where they go.

What a store is stands in :mod:`staticgraph.store.graph_columns`; here are the ways in and out of
it: PyG's data sets, a folder on disk, a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from staticgraph.store import files
from staticgraph.store.graph_columns import GraphColumns

if TYPE_CHECKING:
    import torch

    from staticgraph.memory.budget import MemoryBudget
    from staticgraph.store.on_device import DeviceStore


@dataclass(frozen=True, eq=False, repr=False)
class GraphStore(GraphColumns):
    """Graphs as columns. Build one with :meth:`from_pyg`, :meth:`from_arrays` or :meth:`load`.

    Its attributes are those of :class:`staticgraph.store.graph_columns.GraphColumns`.
    """

    @classmethod
    def from_pyg(cls, dataset: Any, **options: Any) -> Self:
        """Stores a PyG data set, ``Data`` or ``HeteroData``; see
        :func:`staticgraph.store.pyg.flatten.from_pyg` and :mod:`staticgraph.store.pyg.hetero`."""
        from staticgraph.store.pyg.flatten import from_pyg

        return from_pyg(cls, dataset, **options)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Writes the store as a folder; see :func:`staticgraph.store.files.save`."""
        files.save(self, folder, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool | None = None) -> Self:
        """Opens a folder, memory-mapped; see :func:`staticgraph.store.files.load`."""
        return files.load(cls, folder, verify=verify)

    def to(
        self,
        device: str | torch.device,
        *,
        pointers: bool = True,
        budget: MemoryBudget | None = None,
    ) -> DeviceStore:
        """The graphs on a device in compact types, so that only ids of batches cross the bus; see
        :mod:`staticgraph.store.on_device`.

        Args:
            device: a torch device or its name, the CPU too.
            pointers: keep what batches need for ``StaticLoader(pointers=True)``.
            budget: the cap; what the device has for this process, where None.

        Raises:
            BudgetExceeded: they take more than the cap leaves; the message has every array's bytes.
            ValueError: the data set has axes or index fields of its own.
        """
        from staticgraph.store.on_device import move

        return move(self, device, pointers=pointers, budget=budget)
