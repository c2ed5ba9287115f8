"""Several stores read as one store of all their graphs.

Problem: a store of more graphs than memory holds is written in shards, by several processes or on
several hosts, and merging them takes twice the disk space. Idea: graph indices continue from shard
to shard; the sizes of all graphs are in memory (4 bytes per molecule); a graph is read from its
shard, and a batch is gathered from the shards of its graphs (:mod:`staticgraph.store.gather`).
Nothing else is read before it is used.

Invariant: graphs, sizes, histogram, schema, batches and every array equal those of one store of the
same graphs, however they are divided. An array over all graphs (``store.columns["x"]``) is
concatenated in main memory when it is accessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.schema import Level
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store import files
from staticgraph.store.addresses import TakenGraphs
from staticgraph.store.columns import Array, checked_splits
from staticgraph.store.gather import gathered
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.merge import Survey, merge
from staticgraph.store.positions import graph_number
from staticgraph.store.shard_list import ShardList
from staticgraph.store.shards import OpenShards, check_whole
from staticgraph.store.splits import Splits
from staticgraph.text.how_many import how_many

V = TypeVar("V")


class Sharded(GraphColumns):
    """The methods that a store in shards overrides.

    Args:
        found: its shards.
        verify: as for :meth:`GraphStore.load`.
        by_rank: each rank reads only its own shards; others may be missing on this machine.

    Attributes:
        shards: the list of shards.
        by_rank: whether a loader gives each rank the graphs of its own shards.
    """

    shards: ShardList
    by_rank: bool

    def __init__(
        self, found: ShardList, *, verify: bool | None = None, by_rank: bool = False
    ) -> None:
        opened = OpenShards(found.shards, found.name, found.schema, len(found.dtypes))
        counts = [shard.graphs for shard in found.shards]
        known: dict[str, Any] = {
            "shards": found,
            "by_rank": by_rank,
            "schema": found.schema,
            "name": found.name,
            "splits": Splits(found.splits),
            "checks": None,
            "narrow_sizes": found.sizes,
            "_open": opened,
            "_starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        }
        known["objects"] = {name: ObjectsOfShards(self, name) for name in found.objects}
        # A store in one folder has its arrays as attributes; here __getattr__ builds them on
        # access.
        self.__dict__.update(known)
        check_whole(opened, found, by_rank)
        if verify or (verify is None and found.nbytes <= files.WHOLE_BYTES):
            for number in self._here():
                opened.compare(number)

    def __getattr__(self, name: str) -> Any:
        """Builds an array over all graphs on access."""
        if name in ("node_offsets", "edge_offsets"):
            return self._offsets(name == "edge_offsets")
        if name in ("edge_src", "edge_dst", "row_ptr", "transpose", "edge_origin"):
            return self.whole(name)
        if name == "columns":
            return Lazily({f.name: f"column.{f.name}" for f in self.schema}, self.whole)
        if name == "offsets":
            axes = enumerate((axis.name for axis in self.schema.axes), start=2)
            return {axis: self._offsets(column) for column, axis in axes}
        if name == "origins":
            named = {axis.name: f"origins.{axis.name}" for axis in self.schema.edge_axes}
            kept = {k: v for k, v in named.items() if v in self._survey.names}
            return Lazily(kept, self.whole)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _offsets(self, column: int) -> IntArray:
        counts = self.narrow_sizes[:, int(column)]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    @cached_property
    def _survey(self) -> Survey:
        return Survey(self._open.parts())

    def whole(self, name: str) -> Array:
        """Concatenates an array over all shards, by its name in :meth:`GraphColumns.arrays`."""
        dtype, pieces = self._survey.dtype(name), list(self._survey.pieces(name))
        return np.concatenate(pieces).astype(dtype, copy=False) if pieces else np.empty(0, dtype)

    # ------------------------------------------------------------------ finding graphs

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _shard_of(self, graph: int) -> tuple[int, int]:
        graph = graph_number(graph, len(self))
        number = int(np.searchsorted(self._starts, graph, side="right")) - 1
        return number, graph - int(self._starts[number])

    def _pieces(self, ids: IntArray) -> Iterator[tuple[int, IntArray, IntArray]]:
        """Yields for each shard its number, its graphs, and their positions in ``ids``."""
        owners = np.searchsorted(self._starts, ids, side="right") - 1
        places = np.argsort(owners, kind="stable")
        sorted_owners = owners[places]
        cuts = np.flatnonzero(np.diff(sorted_owners)) + 1
        for mine in np.split(places, cuts) if len(ids) else ():
            number = int(owners[mine[0]])
            yield number, ids[mine] - self._starts[number], mine

    def held(self, ids: IntArray, pointers: bool = True) -> tuple[GraphColumns, IntArray]:
        """See :meth:`GraphColumns.held`."""
        found = gathered(self.schema, self.shards.dtypes, self._taken(ids), pointers)
        return found, np.arange(len(ids))

    def _taken(self, ids: IntArray) -> TakenGraphs:
        """Returns graphs with their shards held open; checks ids, which reads by address do not."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise IndexError(f"graph {ids[(ids < 0) | (ids >= len(self))][0]} of {len(self)}")
        owners = np.searchsorted(self._starts, ids, side="right") - 1
        numbers, rows = np.unique(owners, return_inverse=True)
        opened = self._open.several(numbers.tolist())
        return TakenGraphs(self.schema, opened, rows, ids - self._starts[owners])

    def _assembled(self, graph: int) -> Any:
        number, local = self._shard_of(graph)
        return self._asked(number, lambda shard: shard[local])

    def opened(self, first: int, last: int) -> Iterator[tuple[int, GraphColumns]]:
        """Yields the shards of graphs ``first`` to ``last - 1``, each with its first index."""
        for number, begin in enumerate(self._starts[:-1].tolist()):
            if begin < last and self._starts[number + 1] > first:
                yield begin, self._open[number]

    def in_first_order(self) -> Self:
        """See :meth:`GraphColumns.in_first_order`.

        Raises:
            ValueError: edges are sorted; a store in shards is written again instead.
        """
        if self.schema.keep_order:
            return self
        raise ValueError(
            f"{self.name} is in shards, with edges sorted by destination: write it again with "
            "StoreWriter(folder, keep_order=True).extend(store), or staticgraph convert "
            "--keep-order"
        )

    def object_at(self, name: str, graph: int) -> Any:
        """Returns the object of one graph."""
        number, local = self._shard_of(graph)
        return self._open[number].objects[name].at(local)

    def origin_of(self, graph: int, level: Level) -> Array | None:
        """See :meth:`GraphColumns.origin_of`."""
        number, local = self._shard_of(graph)
        return self._open[number].origin_of(local, level)

    # ------------------------------------------------------------------ checking

    def verify(self, graphs: IntArray | None = None) -> None:
        """Checks all data that has not been checked yet; see :meth:`GraphColumns.verify`.

        For a store by rank, a check of all graphs skips the shards that are not on this machine.

        Raises:
            StoreCorrupt: if a checksum differs; the message names the shard, the array and the
                graphs.
        """
        if graphs is not None:
            ids = np.asarray(graphs, np.int64)
            for number, local, _ in self._pieces(ids[self._taken(ids).unchecked()]):
                self._asked(number, lambda shard, local=local: shard.verify(local))
            return
        for number in self._here():
            self._asked(number, lambda shard: shard.verify())

    def _here(self) -> Iterator[int]:
        """Yields the shards that can be opened: all, or by rank those on this machine."""
        for number, shard in enumerate(self.shards.shards):
            if not self.by_rank or shard.folder.is_dir():
                yield number

    def column(self, name: str) -> Array:
        """Returns the whole column of a field, after checking it against its checksums."""
        for number in range(len(self.shards.shards)):
            self._asked(number, lambda shard: shard.column(name))
        return self.columns[name]

    def _asked(self, number: int, what: Callable[[GraphColumns], V]) -> V:
        """Calls ``what`` with a shard; a StoreCorrupt is re-raised with the shard's number."""
        shard = self._open[number]
        try:
            return what(shard)
        except StoreCorrupt as error:
            raise self._open.named(number, error) from None

    # ------------------------------------------------------------------ as a whole

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return self.shards.nbytes

    def with_splits(self, **splits: ArrayLike) -> Self:
        """Returns the same store with these named splits.

        Each split is a list of graph indices, such as ``range(900)``, or a boolean mask with one
        entry per graph.
        """
        other = copy(self)
        other.__dict__["splits"] = checked_splits(splits, len(self), self.name)
        return other

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Writes one store in one folder, with the memory needed for one shard.

        See :func:`staticgraph.store.merge.merge`.
        """
        self.verify()
        merge(self._open.parts(), folder, name=self.name, splits=self.splits, overwrite=overwrite)

    def bounds_of_ranks(self, world_size: int) -> IntArray:
        """Returns ``[world_size + 1]``: where each rank's graphs begin.

        Each rank gets consecutive whole shards, divided as evenly as possible.

        Raises:
            BadGraph: if there are fewer shards than ranks.
        """
        return self._starts[self._shards_of_ranks(world_size)]

    def shards_of_rank(self, rank: int, world_size: int) -> tuple[Path, ...]:
        """Returns the folders that a rank reads, which must be on its host."""
        first, last = self._shards_of_ranks(world_size)[rank : rank + 2]
        return tuple(shard.folder for shard in self.shards.shards[first:last])

    def _shards_of_ranks(self, world_size: int) -> IntArray:
        shards = len(self._starts) - 1
        if shards < world_size:
            raise BadGraph(
                f"{self.name} has {how_many(shards, 'shard')} for {how_many(world_size, 'rank')}, "
                "each of which needs one: write it in more (StoreWriter(part_graphs=...)), or "
                "load it without shards='by-rank'"
            )
        wanted = np.arange(world_size + 1) * (self._starts[-1] / world_size)
        nearest = np.searchsorted(self._starts, wanted)
        nearest -= (nearest > 0) & (
            wanted - self._starts[np.maximum(nearest - 1, 0)] < self._starts[nearest] - wanted
        )
        nearest[0], nearest[-1] = 0, shards
        for rank in range(1, world_size):  # at least one shard each, whatever their lengths
            least, most = nearest[rank - 1] + 1, shards - world_size + rank
            nearest[rank] = min(max(nearest[rank], least), most)
        return nearest

    def __repr__(self) -> str:
        described = [f"{item.name}: {item.describe()}" for item in self.schema]
        fields = ", ".join([*described, *(f"{name}: on the host" for name in self.objects)])
        nodes, edges = (self.narrow_sizes[:, c].sum(dtype=np.int64) for c in (0, 1))
        return (
            f"GraphStore({self.name}: {how_many(len(self), 'graph')} in "
            f"{how_many(len(self.shards.shards), 'shard')}, {how_many(nodes, 'node')}, "
            f"{how_many(edges, 'edge')}, {self.nbytes / 2**20:.1f} MiB; {fields})"
        )


class ObjectsOfShards:
    """Reads objects from shards, like an :class:`staticgraph.store.objects.ObjectColumn`.

    Args:
        store: the store.
        name: the name of the objects.
    """

    def __init__(self, store: Sharded, name: str) -> None:
        self._store, self._name = store, name

    def at(self, graph: int) -> Any:
        """Returns the object of one graph."""
        return self._store.object_at(self._name, int(graph))

    @property
    def text(self) -> Array:
        """See :class:`staticgraph.store.objects.ObjectColumn`, concatenated on access."""
        return self._store.whole(f"objects.{self._name}")

    @property
    def ends(self) -> Array:
        """See :class:`staticgraph.store.objects.ObjectColumn`, concatenated on access."""
        return self._store.whole(f"object_ends.{self._name}")


class Lazily(Mapping[str, Array]):
    """A mapping of arrays, each built when it is read.

    Args:
        names: key -> name of the array.
        make: builds an array, given its name.
    """

    def __init__(self, names: Mapping[str, str], make: Callable[[str], Array]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, key: str) -> Array:
        return self._make(self._names[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self._names
