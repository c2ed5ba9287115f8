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

import resource
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Self

import numpy as np

from staticgraph.errors import StoreCorrupt
from staticgraph.files import document
from staticgraph.files.folder import repair
from staticgraph.schema import POINTERS
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store import files
from staticgraph.store.columns import Splits
from staticgraph.store.graph_columns import GraphColumns, assembled
from staticgraph.store.joined_parts import NONE, Survey, gathered
from staticgraph.store.objects import ObjectColumn, OnAccess
from staticgraph.store.shards import REMEDY, Shards
from staticgraph.store.structure import STRUCTURE

# File descriptors left for everything else; each array of an open shard holds one.
SPARE_DESCRIPTORS = 256


class Sharded(GraphColumns):
    """The methods that a store in shards overrides.

    Args:
        shards: the folders.
        verify: as for :meth:`GraphStore.load`.
        by_rank: a loader gives each rank a range of the graphs of its own.

    Attributes:
        shards: the folders.

    Raises:
        BadGraph: if a shard's fields differ from those of the first.
        StoreCorrupt: if a shard is damaged, missing, or not the one that was listed.
    """

    shards: Shards

    def __init__(
        self, shards: Shards, *, verify: bool | None = None, by_rank: bool = False
    ) -> None:
        # A store in one folder has its arrays as attributes; here they are built on access.
        paths = [path for folder in shards.folders if folder.is_dir() for path in folder.iterdir()]
        nbytes = sum(path.stat().st_size for path in paths)
        whole = verify or (verify is None and nbytes <= files.WHOLE_BYTES)
        self.__dict__.update(
            shards=shards,
            by_rank=by_rank,
            name=shards.name,
            checks=None,
            _nbytes=nbytes,
            _unchecked=set(range(len(shards.folders))) if whole else set(),
        )
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most_open = (descriptors - SPARE_DESCRIPTORS) // max(1, len(paths) // len(shards.folders))
        # The most recently used shards stay open.
        self.__dict__["_open"] = lru_cache(max(4, most_open))(self._load)
        survey = Survey(self._parts())
        self.__dict__.update(
            _survey=survey,
            _starts=survey.starts,
            schema=survey.schema,
            splits=Splits(survey.splits if shards.splits is None else shards.splits),
            narrow_sizes=survey.sizes,
            columns=survey.mapping("column"),
            offsets=survey.mapping("offsets"),
            origins=survey.mapping("origins"),
            objects=OnAccess(
                survey.mapping("objects"),
                lambda key: ObjectColumn(
                    survey.read(f"objects.{key}"), survey.read(f"object_ends.{key}")
                ),
            ),
        )

    def __getattr__(self, name: str) -> Any:
        """Builds an array over all graphs on access."""
        if name not in STRUCTURE:  # a copy asks before it has any attribute
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._survey.read(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the folders, not what is read from them: another process opens them again."""
        shards = replace(self.shards, splits=dict(self.splits))
        return partial(type(self), verify=False, by_rank=self.by_rank), (shards,)

    # ------------------------------------------------------------------ the shards

    def _load(self, number: int) -> GraphColumns:
        """Opens a shard, its columns mapped; the first time, checks every byte if that was asked.

        Raises:
            StoreCorrupt: if it is damaged or missing, or was exchanged for another since it was
                listed, or first opened.
        """
        folder, digests = self.shards.folders[number], self.shards.digests
        name = f"shard {number} of the {len(self.shards.folders)} of {self.name}"
        try:
            repair(folder)
            if number not in digests:
                digests[number] = document.digest(files.read_manifest(folder))
            elif not folder.is_dir():
                raise StoreCorrupt(f"{folder} is not here")
            store = files.load(
                GraphColumns, folder, verify=number in self._unchecked, digest=digests[number]
            )
        except StoreCorrupt as error:
            raise StoreCorrupt(f"{name}: {error}. The others are as they were: {REMEDY}") from None
        self._unchecked.discard(number)
        if store.checks is not None:
            store.checks.name = f"{name}: {folder}"
        return store

    def _parts(self) -> list[Callable[[], GraphColumns]]:
        """See :meth:`GraphColumns._parts`."""
        return [partial(self._open, number) for number in range(len(self.shards.folders))]

    def _opened(self, first: int, last: int) -> Iterator[tuple[int, GraphColumns]]:
        """See :meth:`GraphColumns._opened`."""
        if first < last:
            begin, end = np.searchsorted(self._starts, [first, last - 1], side="right") - 1
            for number in range(begin, end + 1):
                yield int(self._starts[number]), self._open(number)

    def _by_part(self, ids: IntArray) -> tuple[Iterable[tuple[GraphColumns, IntArray]], IntArray]:
        """See :meth:`GraphColumns._by_part`."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < len(self)):
            raise IndexError(f"graph {ids[(ids < 0) | (ids >= len(self))][0]} of {len(self)}")
        owners = np.searchsorted(self._starts, ids, side="right") - 1
        places = np.argsort(owners, kind="stable")
        local = (ids - self._starts[owners])[places]
        numbers, firsts = np.unique(owners[places], return_index=True)
        parts = np.split(local, firsts[1:]) if len(ids) else []
        return zip(map(self._open, numbers.tolist()), parts, strict=True), places

    def held(self, ids: IntArray, pointers: bool = True) -> tuple[GraphColumns, IntArray]:
        """See :meth:`GraphColumns.held`: copies the graphs into one store, shard by shard."""
        opened, places = self._by_part(ids)
        parts = list(opened) or [(GraphColumns.zeros(self.schema), ids)]
        for part, chosen in parts:
            part.verify(chosen)
        edges = self.narrow_sizes[ids, 1].sum(dtype=np.int64)
        dtypes = {**self._survey.widest, "row_ptr": pointer_dtype(edges)}
        arrays = dict.fromkeys(STRUCTURE, NONE) | gathered(
            parts,
            dtypes,
            ("edge_origin", "origins.", "object", *(() if pointers else POINTERS)),
        )
        positions = np.empty_like(places)
        positions[places] = np.arange(len(places))
        return assembled(GraphColumns, self.schema, arrays), positions

    def __len__(self) -> int:
        return int(self._starts[-1])

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

    @property
    def nbytes(self) -> int:
        """Bytes of the files of all shards."""
        return self._nbytes
