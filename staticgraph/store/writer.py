"""A store of more graphs than memory holds, written a part at a time, by one process or several.

The problem: ``GraphStore.from_pyg`` holds all graphs while it sorts and compacts them, and one that
is killed after an hour leaves nothing. The idea: graphs are gathered to parts of some thousands;
each is a store of its own beside the target (``NAME.parts/``), written whole or not at all and then
*committed*; at the end the parts are put together into one folder, array by array, in the memory of
one part. Several processes write shards of their own, and their parts are put together in the order
of shards.

Invariants: what was committed survives a kill, and a writer made again goes on behind it; the
folder is bit for bit what one process with enough memory would have saved, and appears when all is
there, not before. What it does not do: shuffle.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from staticgraph.errors import BadGraph
from staticgraph.files import scratch
from staticgraph.files.folder import exchange, repair, require_replaceable
from staticgraph.schema import Level, Schema
from staticgraph.store.columns import Array, names_of_fields
from staticgraph.store.files import KIND, MANIFEST, save
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.merge import merge
from staticgraph.store.runs import slices
from staticgraph.store.shard_list import numbers_of, parts_in, remove_list, write_list

# A part of molecules is some 10 MB, and 100 million graphs are 5,000 folders.
PART_GRAPHS = 20_000


class StoreWriter:
    """Appends graphs to a store on disk.

    As a context it finishes the store at the end of the block, unless it writes one of several
    shards, which :meth:`finish` of any writer puts together; where the block raises, what was
    committed stays, and another writer of the same folder goes on.

    Args:
        folder: of the store to be; its parts are in a folder next to it until it is finished.
        schema: the fields to expect; by default those of the first part.
        shard: which of several processes this is; None for one alone.
        part_graphs: graphs in a part, which is what a kill can lose, and what memory must hold.
        name: what messages call the data set.
        levels, exclude, check_finite: as for :meth:`GraphStore.from_pyg`, for every part.
        overwrite: replace a store that stands there, when this one is finished.

    Attributes:
        committed: graphs that this shard has on disk; the next one to append is this number.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self,
        folder: str | Path,
        schema: Schema | None = None,
        *,
        shard: int | None = None,
        part_graphs: int = PART_GRAPHS,
        name: str | None = None,
        levels: Mapping[str, Level] | None = None,
        exclude: Iterable[str] = (),
        check_finite: bool | tuple[str, ...] = False,
        overwrite: bool = False,
    ) -> None:
        if part_graphs < 1 or not 0 <= (shard or 0) < 10**5:
            raise ValueError(f"part_graphs={part_graphs} of at least 1, shard={shard} below 100000")
        self.folder: Path = Path(folder).expanduser()
        self._shard, self._part_graphs = shard, part_graphs
        self._name = name or self.folder.name
        self._levels = dict(levels or {})
        self._exclude, self._check_finite = names_of_fields(exclude), check_finite
        self._overwrite = overwrite
        self._waiting: list[Any] = []
        _clean(self.folder)
        own = [path for path in parts_of(self.folder) if numbers_of(path)[0] == (shard or 0)]
        stores = [GraphStore.load(path, verify=False) for path in own]
        self._number = len(own)
        self.committed: int = sum(len(store) for store in stores)
        self.schema = stores[0].schema if stores else schema
        if self.schema is not None:
            self._levels = {**self._known_levels(self.schema), **self._levels}

    # ------------------------------------------------------------------ appending

    def append(self, graph: Any) -> None:
        """Adds a graph, a ``Data`` or ``HeteroData``; committed with its part.

        Raises:
            BadGraph: it does not fit what came before; its part is left out.
        """
        self._waiting.append(graph)
        if len(self._waiting) >= self._part_graphs:
            self.commit()

    def extend(self, graphs: Iterable[Any]) -> None:
        """Adds all graphs of a data set, a generator or another store, in their order."""
        if isinstance(graphs, GraphStore):
            for part in slices(graphs, self._part_graphs):
                self.append_part(part)
            return
        for graph in graphs:
            self.append(graph)

    def append_part(self, part: GraphColumns) -> None:
        """Adds the graphs of a store as one part; committed when it returns."""
        self.commit()
        self._write(part)

    def append_arrays(self, *arrays: Any, **options: Any) -> None:
        """Adds graphs as flat arrays, as one part; see :meth:`GraphStore.from_arrays`."""
        self.commit()
        self._write(GraphStore.from_arrays(*arrays, **options))

    def commit(self) -> None:
        """Writes what waits to the disk now; it survives a kill from here on.

        Raises:
            BadGraph: a graph that waits cannot be stored; the message names it.
        """
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            store = GraphStore.from_pyg(
                waiting,
                levels=self._levels,
                exclude=self._exclude,
                check_finite=self._check_finite,
                name=self._name,
                progress=False,
            )
        except BadGraph as error:
            first = self.committed
            last = first + len(waiting) - 1
            raise BadGraph(f"of graphs {first} to {last}, here counted from 0: {error}") from None
        self._write(store)

    def _write(self, store: GraphColumns) -> None:
        self._check_fields(store)
        part = parts_folder(self.folder) / f"{self._shard or 0:05d}-{self._number:07d}"
        save(store.with_splits(), part)
        self._number += 1
        self.committed += len(store)
        if self.schema is None:
            self.schema = store.schema
            self._levels = {**self._known_levels(store.schema), **self._levels}

    def _known_levels(self, schema: Schema) -> dict[str, Level]:
        """Of the first part; in a later one lengths could say another level by chance."""
        return {} if schema.hetero else {field.name: field.level for field in schema}

    def _check_fields(self, store: GraphColumns) -> None:
        if self.schema is None:
            return
        ours, theirs = ({f.name: f for f in s} for s in (self.schema, store.schema))
        for name in sorted({*ours, *theirs}):
            mine, other = ours.get(name), theirs.get(name)
            if mine is None or other is None or mine.layout != other.layout:
                was, now = ("missing" if f is None else f.describe() for f in (mine, other))
                raise BadGraph(
                    f"graphs {self.committed} to {self.committed + len(store) - 1} of {self._name} "
                    f"have {name!r} as {now}, those before as {was}: give every graph the same "
                    "fields, or leave one out with exclude=[...]"
                )

    # ------------------------------------------------------------------ ending

    def finish(
        self, splits: Mapping[str, Array] | None = None, *, merged: bool = True
    ) -> GraphStore:
        """Commits what waits, puts all parts of all shards together, and removes them.

        Args:
            splits: named lists of graph numbers, counted over all shards.
            merged: False leaves the parts as they are, and adds a list of them: no bytes are
                copied, and hosts may hold some of them. A graph then costs a little more to read
                (:mod:`staticgraph.store.gather`).

        Raises:
            BadGraph: there is no graph, or shards have other fields.
            FileExistsError: a store stands there, and was not to be replaced; or one in shards,
                which is never.
            StoreCorrupt: a part is damaged or missing; the parts stay.
        """
        self.commit()
        paths = parts_of(self.folder)
        if not paths:
            raise BadGraph(f"{self.folder} has no graphs yet: append some before finish()")
        if not merged:
            return self._finish_in_shards(splits or {})
        merge(
            [lambda path=path: GraphStore.load(path, verify=False) for path in paths],
            self.folder,
            name=self._name,
            splits=splits,
            overwrite=self._overwrite,
        )
        store = GraphStore.load(self.folder)  # before what it was made of is removed
        _remove_parts(self.folder)
        self._number = self.committed = 0
        return store

    def _finish_in_shards(self, splits: Mapping[str, Array]) -> GraphStore:
        """The list is written where the parts stand, and the folder moved to its place: a kill
        leaves parts, with a list or without, or the store."""
        parts, target = parts_folder(self.folder), Path(os.path.realpath(self.folder))
        require_replaceable(target, KIND, self._overwrite)
        write_list(parts, self._name, splits)
        exchange(parts, target)
        self._number = self.committed = 0
        return GraphStore.load(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            return
        if self._shard is None:
            self.finish()
        else:
            self.commit()


def parts_folder(folder: Path) -> Path:
    """Where the parts of a store stand that is not finished."""
    return folder.with_name(f"{folder.name}.parts")


def _remove_parts(folder: Path) -> None:
    """All at once, by name; a kill leaves none or what nobody takes for parts."""
    parts = parts_folder(folder)
    removed = scratch.beside(parts, "part")
    parts.rename(removed)
    scratch.remove(removed)


def _clean(folder: Path) -> None:
    """Removes what a kill left of parts that are in the store already: it was written after all of
    them, and has as many graphs."""
    scratch.clean(parts_folder(folder))
    paths = parts_of(folder)
    remove_list(parts_folder(folder))  # of an end that a kill cut off
    repair(folder)
    if not paths or not (folder / MANIFEST).exists():
        return
    finished = (folder / MANIFEST).stat().st_mtime_ns
    if any((path / MANIFEST).stat().st_mtime_ns > finished for path in paths):
        return
    graphs = sum(len(GraphStore.load(path, verify=False)) for path in paths)
    if graphs == len(GraphStore.load(folder, verify=False)):
        _remove_parts(folder)


def parts_of(folder: Path) -> list[Path]:
    """The committed parts, by shard and number; see
    :func:`staticgraph.store.shard_list.parts_in`."""
    return parts_in(parts_folder(folder))
