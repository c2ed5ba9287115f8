"""A data set of many graphs: its columns, where they come from, and where they go.

What a store is stands in :mod:`staticgraph.store.graph_columns`; here are the ways in and out of
it: PyG's data sets, a folder on disk, a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from staticgraph.files.folder import repair
from staticgraph.schema import Level, Schema
from staticgraph.store import files
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.shard_list import listed
from staticgraph.store.sharded import Sharded

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
    def from_pyg(
        cls,
        dataset: Any,
        *,
        schema: Schema | None = None,
        levels: Mapping[str, Level] | None = None,
        exclude: Iterable[str] = (),
        check_finite: bool | tuple[str, ...] = False,
        name: str | None = None,
        progress: bool = True,
    ) -> Self:
        """Stores any PyG data set, or any sequence of ``Data`` or ``HeteroData``.

        Args:
            dataset: graphs: a data set, a sequence, or anything that gives one after the other,
                such as a generator. A transform of the data set is applied once, now; where it
                draws random numbers a warning says so, and ``StaticLoader(transform=...)`` draws
                for every batch. Strings and other objects that JSON keeps stay on the host, a list
                in a batch (``batch.smiles``).
            schema: the fields to expect, as for new graphs given to a trained model; without it
                they are read off the data. Targets (``y``) that new graphs lack are filled with
                zeros.
            levels: attribute -> ``"node"``, ``"edge"`` or ``"graph"``, where lengths do not tell:
                in a data set whose every graph has three edges, a ``[3, 3]`` tensor per graph looks
                like an edge feature. Any other word is an axis: fields of the same word have as
                many rows.
            exclude: attributes to leave out.
            check_finite: refuse NaN and infinity in every floating field but ``y``, or in those
                named.
            name: what messages call the data set; its class by default.
            progress: show a bar for data sets that take more than a moment, and then, on stderr,
                one line that says what was kept, dropped and applied.

        Raises:
            BadGraph: an empty data set; a graph without a field that others have, or with another
                dtype or width; an attribute whose length is neither nodes, edges nor a constant; an
                edge outside its graph. The message names the graph and the remedy.
        """
        from staticgraph.store.pyg.flatten import from_pyg

        return from_pyg(
            cls,
            dataset,
            schema=schema,
            levels=levels,
            exclude=exclude,
            check_finite=check_finite,
            name=name,
            progress=progress,
        )

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Writes the store as a folder; see :func:`staticgraph.store.files.save`."""
        files.save(self, folder, overwrite=overwrite)

    @classmethod
    def load(
        cls,
        folder: str | Path | Sequence[str | Path],
        *,
        verify: bool | None = None,
        shards: Literal["by-rank"] | None = None,
    ) -> GraphStore:
        """Opens what :meth:`save` or a :class:`StoreWriter` wrote, memory-mapped; no column is read
        before it is used.

        Args:
            folder: of a store, in one piece or in shards; the ``.parts`` of a writer that has not
                finished; or several stores, to be read as one, one after the other.
            verify: True compares every byte now, False each block when it is first read; None does
                the first up to 64 MiB. ``store.verify()`` compares what is left.
            shards: ``"by-rank"``: each rank of a job reads whole shards of its own, and others need
                not be on its host; plans are made over all. Of a folder with a list of shards, as
                ``StoreWriter(...).finish(merged=False)`` leaves it.

        Raises:
            FileNotFoundError: there is no store.
            StoreCorrupt: another format or version, a missing or shortened file, a wrong checksum,
                or arrays that do not fit together; the message names shard, file, array and graph.
            BadGraph: shards have other fields than the first.
            ValueError: shards by rank of what has no list of shards.
        """
        place = (
            Path(folder).expanduser()
            if isinstance(folder, str | Path)
            else [Path(each).expanduser() for each in folder]
        )
        if isinstance(place, Path):
            repair(place)
        found = listed(place)
        whole = isinstance(place, Path) and (place / files.MANIFEST).exists()
        if found is not None and (shards is None or whole):
            return ShardedStore(found, verify=verify, by_rank=shards is not None)
        if shards is not None:
            raise ValueError(
                f"shards={shards!r} needs a folder with a list of its shards, and {folder} is "
                "none: write one with StoreWriter(...).finish(merged=False)"
            )
        assert isinstance(place, Path)
        return files.load(cls, place, verify=verify)

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
            ValueError: the data set has axes or index fields of its own, or there is no such
                device.
        """
        from staticgraph.store.on_device import move

        return move(self, device, pointers=pointers, budget=budget)


class ShardedStore(Sharded, GraphStore):
    """A :class:`GraphStore` in several folders; :meth:`GraphStore.load` gives one. See
    :mod:`staticgraph.store.sharded`."""
