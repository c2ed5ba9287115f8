""":class:`GraphStore`, a data set of many graphs: from PyG, to and from disk, to a device.

The columns themselves, and how they are read, are in :mod:`staticgraph.store.graph_columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from staticgraph.errors import BadGraph
from staticgraph.files.folder import repair
from staticgraph.schema import Level, Schema
from staticgraph.store import files
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.sharded import Sharded, Shards

if TYPE_CHECKING:
    import torch

    from staticgraph.memory.budget import MemoryBudget
    from staticgraph.store.on_device import DeviceStore


@dataclass(frozen=True, eq=False, repr=False)
class GraphStore(GraphColumns):
    """A data set of graphs as flat columns.

    Build one with :meth:`from_pyg`, :meth:`from_arrays` or :meth:`load`. The attributes are those
    of :class:`staticgraph.store.graph_columns.GraphColumns`.
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
        keep_order: bool = False,
    ) -> Self:
        """Builds a store from any PyG data set, or from any sequence of ``Data`` or ``HeteroData``.

        Args:
            dataset: the graphs: a data set, a sequence, or any iterable such as a generator. The
                data set's transform is applied once, now; if it draws random numbers, a warning
                says so (``StaticLoader(transform=...)`` draws for every batch). Strings and other
                objects that survive a round trip through JSON stay on the host and appear in a
                batch as a list (``batch.smiles``).
            schema: the fields to expect, as for new graphs given to a trained model; inferred by
                default. Targets (``y``) that new graphs lack are filled with zeros.
            levels: attribute -> ``"node"``, ``"edge"`` or ``"graph"``, for attributes whose level
                cannot be inferred from their length: if every graph has three edges, a ``[3, 3]``
                tensor per graph looks like an edge feature. Any other word names an axis; fields on
                the same axis have the same number of rows.
            exclude: attributes to leave out.
            check_finite: reject NaN and infinity in every floating field except ``y`` (True), or in
                the named ones.
            name: the data set's name in messages; its class name by default.
            progress: show a progress bar for large data sets, then print one line to stderr with
                what was kept, what was dropped and which transform was applied.
            keep_order: leave each graph's edges in their order instead of sorting them by
                destination, for a model that reads them by position (bonds in pairs, as D-MPNN
                does). The fused kernels do not run over such a store. With a ``schema``, its own
                ``keep_order`` counts.

        Raises:
            BadGraph: for an empty data set; a graph without a field that others have, or with
                another dtype or width; an attribute whose length is neither nodes, edges nor a
                constant; or an edge outside its graph. The message names the graph and the remedy.
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
            keep_order=keep_order,
        )

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Writes the store to a folder, of one in shards with the memory needed for one shard.

        Args:
            folder: the target folder; created if missing.
            overwrite: replace an existing store.

        Raises:
            FileExistsError: if the folder holds a store and ``overwrite`` is false, or anything
                that is not part of a store; the message names it, and nothing is changed.
        """
        self.verify()
        files.save(self, folder, overwrite=overwrite)

    @classmethod
    def load(
        cls,
        folder: str | Path | Sequence[str | Path],
        *,
        verify: bool | None = None,
        shards: Literal["by-rank"] | None = None,
    ) -> GraphStore:
        """Opens a store written by :meth:`save` or a :class:`StoreWriter`, memory-mapped.

        No column is read before it is used.

        Args:
            folder: a store, in one piece or in shards; the ``.parts`` of an unfinished writer; or
                several stores, to be read as one, which has the splits that all of them have.
            verify: True checks every byte now, False each block when it is first read, and None
                chooses True up to 64 MiB. ``store.verify()`` checks the rest.
            shards: ``"by-rank"``: each rank of a job reads a range of the graphs of its own, an
                equal share. Plans cover all graphs.

        Raises:
            FileNotFoundError: if there is no store.
            StoreCorrupt: for another format or version, a missing or truncated file, a wrong
                checksum, or arrays that do not fit together; the message names the shard, file,
                array and graph.
            BadGraph: if a shard's fields differ from those of the first.
            ValueError: if ``shards`` is another word, or is given for a list of stores or an
                unfinished store.
        """
        if shards not in (None, "by-rank"):
            raise ValueError(f"shards={shards!r}; choose 'by-rank', or leave it out")
        single = isinstance(folder, str | Path)
        by_rank = shards is not None
        places = [Path(each).expanduser() for each in ([folder] if single else folder)]
        if not places:
            raise BadGraph("no shard was given; a store needs at least one")
        if single:
            repair(places[0])
        if by_rank and not (single and (places[0] / files.MANIFEST).exists()):
            raise ValueError(
                f"shards={shards!r} needs one finished store, and {folder} is none: finish it with "
                "StoreWriter(...).finish(), or join several with GraphStore.load([...]).save(...)"
            )
        folders = Shards.find(places[0]) if single else Shards(tuple(places), "shards")
        if folders is not None:
            return ShardedStore(folders, verify=verify, by_rank=by_rank)
        store = files.load(cls, places[0], files.read_manifest(places[0]), verify=verify)
        return replace(store, by_rank=by_rank)

    def to(
        self,
        device: str | torch.device,
        *,
        pointers: bool = True,
        budget: MemoryBudget | None = None,
    ) -> DeviceStore:
        """Copies the graphs to a device, so that only the ids of a batch cross the bus.

        They are kept in compact dtypes; see :mod:`staticgraph.store.on_device`.

        Args:
            device: a torch device or its name; the CPU is allowed.
            pointers: also move the arrays that batches need for ``StaticLoader(pointers=True)``.
            budget: the memory cap; None for the memory available to this process on the device.

        Raises:
            BudgetExceeded: if they need more than the cap leaves; the message lists the bytes of
                every array.
            ValueError: if the data set has axes or index fields of its own, or the device does not
                exist.
        """
        from staticgraph.store.on_device import move

        return move(self, device, pointers=pointers, budget=budget)


class ShardedStore(Sharded, GraphStore):
    """A :class:`GraphStore` in several folders, as returned by :meth:`GraphStore.load`.

    See :mod:`staticgraph.store.sharded`.
    """
