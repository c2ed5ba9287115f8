"""Several stores read as one store of all their graphs: a view over folders that exist already.

Graph indices continue from shard to shard; the sizes of all graphs are in memory (4 bytes per
molecule); a graph is read from its shard, and a batch is gathered from the shards of its graphs,
array by array. Nothing else is read before it is used. Training reads a store in one folder faster:
:meth:`Sharded.save` writes one.

Invariant: graphs, sizes, histogram, schema, batches and every array equal those of one store of the
same graphs, however they are divided. An array over all graphs (``store.columns["x"]``) is
concatenated in main memory when it is accessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.errors import BadGraph, StoreCorrupt
from staticgraph.schema import Level
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store import files
from staticgraph.store.columns import Array, Splits, checked_splits
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.merge import Survey, merge
from staticgraph.store.positions import graph_number
from staticgraph.store.shards import OpenShards, ShardList
from staticgraph.text.how_many import how_many

V = TypeVar("V")


class Sharded(GraphColumns):
    """The methods that a store in shards overrides.

    Args:
        shards: the list of its shards.
        verify: as for :meth:`GraphStore.load`.
        by_rank: each rank reads only its own shards; others may be missing on this machine.

    Attributes:
        shards: the list of shards.
    """

    shards: ShardList

    def __init__(
        self, shards: ShardList, *, verify: bool | None = None, by_rank: bool = False
    ) -> None:
        counts = [shard.graphs for shard in shards.shards]
        objects = {name: ObjectsOfShards(self, name) for name in shards.objects}
        # A store in one folder has its arrays as attributes; here __getattr__ builds them on
        # access.
        self.__dict__.update(
            shards=shards,
            by_rank=by_rank,
            schema=shards.schema,
            name=shards.name,
            splits=Splits(shards.splits),
            checks=None,
            narrow_sizes=shards.sizes,
            objects=objects,
            _open=OpenShards(shards),
            _starts=np.cumsum([0, *counts], dtype=np.int64),
        )
        self._open.check_lengths(by_rank)
        if verify or (verify is None and shards.nbytes <= files.WHOLE_BYTES):
            for number in self._present():
                self._open.load(number, verify=True)

    def __getattr__(self, name: str) -> Any:
        """Builds an array over all graphs on access."""
        if name in ("node_offsets", "edge_offsets"):
            return self._offsets(name == "edge_offsets")
        if name in ("edge_src", "edge_dst", "row_ptr", "transpose", "edge_origin"):
            return self._survey.joined(name)
        if name == "columns":
            return JoinedArrays({f.name: f"column.{f.name}" for f in self.schema}, self._survey)
        if name == "offsets":
            axes = enumerate((axis.name for axis in self.schema.axes), start=2)
            return {axis: self._offsets(column) for column, axis in axes}
        if name == "origins":
            names = {axis.name: f"origins.{axis.name}" for axis in self.schema.edge_axes}
            present = {k: v for k, v in names.items() if v in self._survey.names}
            return JoinedArrays(present, self._survey)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _offsets(self, column: int) -> IntArray:
        counts = self.narrow_sizes[:, int(column)]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    @cached_property
    def _survey(self) -> Survey:
        return Survey(self._parts())

    def _parts(self) -> list[Callable[[], GraphColumns]]:
        return [partial(self._open.__getitem__, number) for number in range(len(self._open))]

    # ------------------------------------------------------------------ finding graphs

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _locate(self, graph: int) -> tuple[int, int]:
        """Returns the number of a graph's shard, and the graph's index in it."""
        graph = graph_number(graph, len(self))
        number = int(np.searchsorted(self._starts, graph, side="right")) - 1
        return number, graph - int(self._starts[number])

    def _by_shard(self, ids: IntArray) -> tuple[list[tuple[int, IntArray]], IntArray]:
        """Returns each shard's number and graphs, and the positions in ``ids`` in that order."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise IndexError(f"graph {ids[(ids < 0) | (ids >= len(self))][0]} of {len(self)}")
        owners = np.searchsorted(self._starts, ids, side="right") - 1
        places = np.argsort(owners, kind="stable")
        local = (ids - self._starts[owners])[places]
        numbers, firsts = np.unique(owners[places], return_index=True)
        parts = np.split(local, firsts[1:]) if len(ids) else []
        return list(zip(numbers.tolist(), parts, strict=True)), places

    def held(self, ids: IntArray, pointers: bool = True) -> tuple[GraphColumns, IntArray]:
        """See :meth:`GraphColumns.held`: copies the graphs into one store, shard by shard."""
        schema, dtypes = self.schema, self.shards.dtypes
        by_shard, places = self._by_shard(ids)
        stores = [self._open[number] for number, _ in by_shard]
        arrays = [store.arrays() for store in stores]
        shards = [(store, local) for store, (_, local) in zip(stores, by_shard, strict=True)]
        cuts = np.cumsum([0, *(len(local) for _, local in shards)])
        sizes = self.narrow_sizes[ids[places]].astype(np.int64)
        levels = ("node", "edge", *(axis.name for axis in schema.axes))
        offsets = {
            level: np.concatenate([[0], np.cumsum(sizes[:, column])])
            for column, level in enumerate(levels)
        }

        @cache
        def shift(level: Level, rows: int) -> IntArray:
            """Returns ``[g]``: the rows of a level before each graph in its shard, less here."""
            begins = [
                local * rows if level == "graph" else store.offsets_of(level)[local]
                for store, local in shards
            ]
            here = np.arange(len(ids)) * rows if level == "graph" else offsets[level][:-1]
            return np.concatenate([ids[:0], *begins]) - here

        @cache
        def rows_of(level: Level, rows: int) -> tuple[IntArray, list[int]]:
            """Returns the rows to read, and where those of each shard begin among them."""
            bounds = np.arange(len(ids) + 1) * rows if level == "graph" else offsets[level]
            read = np.arange(bounds[-1]) + np.repeat(shift(level, rows), np.diff(bounds))
            return read, bounds[cuts].tolist()

        def gather(name: str, level: Level, rows: int = 1, shape: tuple[int, ...] = ()) -> Array:
            """Copies the rows of an array of all of these graphs."""
            read, bounds = rows_of(level, rows)
            target = np.empty((len(read), *shape), dtypes[name])
            for source, first, last in zip(arrays, bounds[:-1], bounds[1:], strict=True):
                target[first:last] = source[name][read[first:last]]
            return target

        none = np.empty(0, np.int64)
        pointers &= schema.has_pointers
        edges = dict.fromkeys(("edge_src", "edge_dst", "transpose"), none)
        for name in edges if schema.one_kind else ():
            if pointers or name != "transpose":
                edges[name] = gather(name, "edge")
        row_ptr = none
        if pointers:
            edge_count = int(offsets["edge"][-1])
            row_ptr = np.empty(int(offsets["node"][-1]) + 1, pointer_dtype(edge_count))
            row_ptr[:-1] = gather("row_ptr", "node") - np.repeat(shift("edge", 1), sizes[:, 0])
            row_ptr[-1] = edge_count
        gathered = GraphColumns(
            schema=schema,
            node_offsets=offsets["node"],
            edge_offsets=offsets["edge"],
            row_ptr=row_ptr,
            edge_origin=none,
            columns={
                field.name: gather(f"column.{field.name}", field.level, field.rows, field.shape)
                for field in schema
            },
            offsets={axis.name: offsets[axis.name] for axis in schema.axes},
            **edges,
        )
        positions = np.empty_like(places)
        positions[places] = np.arange(len(places))
        return gathered, positions

    def _assembled(self, graph: int) -> Any:
        number, local = self._locate(graph)
        return self._call(number, lambda shard: shard[local])

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
        number, local = self._locate(graph)
        return self._open[number].objects[name].at(local)

    def origin_of(self, graph: int, level: Level) -> Array | None:
        """See :meth:`GraphColumns.origin_of`."""
        number, local = self._locate(graph)
        return self._open[number].origin_of(local, level)

    # ------------------------------------------------------------------ checking

    def verify(self, graphs: IntArray | None = None) -> None:
        """Checks all data that has not been checked yet; see :meth:`GraphColumns.verify`.

        For a store by rank, a check of all graphs skips the shards that are not on this machine.

        Raises:
            StoreCorrupt: if a checksum differs; the message names the shard, the array and the
                graphs.
        """
        if graphs is None:
            for number in self._present():
                self._call(number, lambda shard: shard.verify())
            return
        for number, local in self._by_shard(np.asarray(graphs, np.int64))[0]:
            self._call(number, lambda shard, local=local: shard.verify(local))

    def _present(self) -> Iterator[int]:
        """Yields the shards that can be opened: all, or by rank those on this machine."""
        for number, shard in enumerate(self.shards.shards):
            if not self.by_rank or shard.folder.is_dir():
                yield number

    def column(self, name: str) -> Array:
        """Returns the whole column of a field, after checking it against its checksums."""
        for number in range(len(self._open)):
            self._call(number, lambda shard: shard.column(name))
        return self.columns[name]

    def _call(self, number: int, what: Callable[[GraphColumns], V]) -> V:
        """Calls ``what`` with a shard; a StoreCorrupt is raised again with the shard's number."""
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
        """See :meth:`GraphColumns.with_splits`."""
        other = copy(self)
        other.__dict__["splits"] = Splits(checked_splits(splits, len(self), self.name))
        return other

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Writes one store in one folder, with the memory needed for one shard.

        See :func:`staticgraph.store.merge.merge`.
        """
        self.verify()
        merge(self._parts(), folder, name=self.name, splits=self.splits, overwrite=overwrite)

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
        shards = len(self._open)
        if shards < world_size:
            raise BadGraph(
                f"{self.name} has {how_many(shards, 'shard')} for {how_many(world_size, 'rank')}, "
                "each of which needs one: write it as one store with save(), or load it without "
                "shards='by-rank'"
            )
        wanted = np.arange(world_size + 1) * (len(self) / world_size)
        nearest = np.abs(self._starts[:, None] - wanted).argmin(axis=0)
        nearest[0], nearest[-1] = 0, shards
        for rank in range(1, world_size):  # at least one shard each, whatever their lengths
            least, most = nearest[rank - 1] + 1, shards - world_size + rank
            nearest[rank] = min(max(nearest[rank], least), most)
        return nearest

    def _size_in_words(self) -> str:
        return f"{how_many(len(self), 'graph')} in {how_many(len(self._open), 'shard')}"


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
        return self._store._survey.joined(f"objects.{self._name}")

    @property
    def ends(self) -> Array:
        """See :class:`staticgraph.store.objects.ObjectColumn`, concatenated on access."""
        return self._store._survey.joined(f"object_ends.{self._name}")


class JoinedArrays(Mapping[str, Array]):
    """A mapping of arrays over all shards, each concatenated when it is read.

    Args:
        names: key -> name of the array.
        survey: of the shards.
    """

    def __init__(self, names: Mapping[str, str], survey: Survey) -> None:
        self._names, self._survey = names, survey

    def __getitem__(self, key: str) -> Array:
        return self._survey.joined(self._names[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        return key in self._names
