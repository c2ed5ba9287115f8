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

from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from staticgraph.errors import BadGraph
from staticgraph.schema import POINTERS
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store import files
from staticgraph.store.checks import offsets_name
from staticgraph.store.columns import Array, Splits
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.objects import ObjectColumn, OnAccess
from staticgraph.store.parts import NONE, Survey, gathered
from staticgraph.store.shards import ShardList
from staticgraph.store.structure import STRUCTURE
from staticgraph.text.how_many import how_many


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
            # The most recently used shards stay open.
            _open=lru_cache(shards.most_open)(shards.load),
            _starts=np.cumsum([0, *(shard.graphs for shard in shards.shards)], dtype=np.int64),
        )
        shards.check_lengths(by_rank)
        if verify or (verify is None and shards.nbytes <= files.WHOLE_BYTES):
            for number in self._present():
                shards.load(number, verify=True)

    def __getattr__(self, name: str) -> Any:
        """Builds an array over all graphs on access."""
        if name in STRUCTURE:
            return self._array(name)
        if name == "columns":
            return OnAccess([field.name for field in self.schema], self._array_of("column"))
        if name == "objects":
            text, ends = self._array_of("objects"), self._array_of("object_ends")
            return OnAccess(self.shards.objects, lambda key: ObjectColumn(text(key), ends(key)))
        if name not in ("offsets", "origins"):  # a copy asks before it has any attribute
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        axes = [axis.name for axis in self.schema.axes]
        if name == "origins":
            axes = [axis for axis in axes if f"origins.{axis}" in self._survey.names]
        return OnAccess(axes, self._array_of(name))

    def _array(self, name: str) -> Array:
        """Returns an array over all graphs: offsets from the sizes, others from the shards."""
        levels = ("node", "edge", *(axis.name for axis in self.schema.axes))
        for column, level in enumerate(levels):
            if name == offsets_name(level):
                counts = self.narrow_sizes[:, column]
                return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return self._survey.read(name)

    def _array_of(self, kind: str) -> Callable[[str], Array]:
        return lambda key: self._array(f"{kind}.{key}")

    @cached_property
    def _survey(self) -> Survey:
        return Survey(self._parts())

    # ------------------------------------------------------------------ the shards

    def _parts(self) -> list[Callable[[], GraphColumns]]:
        """See :meth:`GraphColumns._parts`."""
        return [partial(self._open, number) for number in range(len(self.shards.shards))]

    def _opened(self, first: int, last: int) -> Iterator[tuple[int, GraphColumns]]:
        """See :meth:`GraphColumns._opened`."""
        if first < last:
            begin, end = np.searchsorted(self._starts, [first, last - 1], side="right") - 1
            for number in range(begin, end + 1):
                yield int(self._starts[number]), self._open(number)

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
        by_shard, places = self._by_shard(ids)
        parts = [(self._open(number), local) for number, local in by_shard]
        if not parts:
            parts = [(GraphColumns.zeros(self.schema), ids)]
        edges = self.narrow_sizes[ids, 1].sum(dtype=np.int64)
        dtypes = {**self.shards.dtypes, "row_ptr": pointer_dtype(edges)}
        arrays = dict.fromkeys(STRUCTURE, NONE) | gathered(
            parts,
            dtypes.__getitem__,
            ("edge_origin", "origins.", "object", *(() if pointers else POINTERS)),
        )
        positions = np.empty_like(places)
        positions[places] = np.arange(len(places))
        return assembled(GraphColumns, self.schema, arrays), positions

    def __len__(self) -> int:
        return int(self._starts[-1])

    # ------------------------------------------------------------------ checking

    def verify(self, graphs: IntArray | None = None) -> None:
        """Checks all data that has not been checked yet; see :meth:`GraphColumns.verify`.

        For a store by rank, a check of all graphs skips the shards that are not on this machine.

        Raises:
            StoreCorrupt: if a checksum differs; the message names the shard, the array and the
                graphs.
        """
        chosen = ((number, None) for number in self._present())
        for number, local in (
            chosen if graphs is None else self._by_shard(np.asarray(graphs, np.int64))[0]
        ):
            shard = self._open(number)
            with self.shards.naming(number):
                shard.verify(local)

    def _present(self) -> Iterator[int]:
        """Yields the shards that can be opened: all, or by rank those on this machine."""
        for number, shard in enumerate(self.shards.shards):
            if not self.by_rank or shard.folder.is_dir():
                yield number

    def column(self, name: str) -> Array:
        """Returns the whole column of a field, after checking it against its checksums."""
        for number, part in enumerate(self._parts()):
            shard = part()
            with self.shards.naming(number):
                shard.column(name)
        return self.columns[name]

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

    # ------------------------------------------------------------------ as a whole

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return self.shards.nbytes

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
        shards = len(self.shards.shards)
        if shards < world_size:
            raise BadGraph(
                f"{self.name} has {how_many(shards, 'shard')} for {how_many(world_size, 'rank')}, "
                "each of which needs one: write it as one store with save(), or load it without "
                "shards='by-rank'"
            )
        bounds = np.arange(world_size + 1) * (len(self) / world_size)
        nearest = np.abs(self._starts[:, None] - bounds).argmin(axis=0)
        nearest[0], nearest[-1] = 0, shards
        for rank in range(1, world_size):  # at least one shard each, whatever their lengths
            least, most = nearest[rank - 1] + 1, shards - world_size + rank
            nearest[rank] = min(max(nearest[rank], least), most)
        return nearest

    def _size_in_words(self) -> str:
        return f"{how_many(len(self), 'graph')} in {how_many(len(self.shards.shards), 'shard')}"
