"""Writes a store of more graphs than memory holds, part by part, from one process or several.

Problem: ``GraphStore.from_pyg`` holds all graphs while it sorts and compacts them, and a process
that is killed after an hour leaves nothing. Idea: graphs are collected into parts of some
thousands; each part is a store of its own next to the target (in ``NAME.parts/``), written whole or
not at all and then *committed*; at the end the parts are merged into one folder, array by array,
with the memory needed for one part. Several processes write one shard each, and their parts are
merged in the order of the shards.

Invariants: committed parts survive a kill, and a new writer continues after them; the final folder
is bit for bit what one process with enough memory would have saved, and appears only when it is
complete. A writer does not shuffle.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from staticgraph.errors import BadGraph
from staticgraph.files import scratch
from staticgraph.files.folder import exchange, repair, require_replaceable
from staticgraph.schema import Level, Schema
from staticgraph.store.columns import Array, names_of_fields
from staticgraph.store.files import KIND, MANIFEST, parts_folder, save
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore, ShardedStore
from staticgraph.store.joined_parts import require_same_fields, slices
from staticgraph.store.sharded import EMPTY, UNFINISHED, Shards, parts_in, write_list
from staticgraph.text.numeric_options import whole_option

# A part of molecules takes some 10 MB, and 100 million graphs take 5,000 folders.
PART_GRAPHS = 20_000
# The number of a shard has five digits in the names of its parts.
MOST_SHARDS = 10**5


class StoreWriter:
    """Appends graphs to a store on disk.

    As a context manager, it finishes the store at the end of the block; a writer of one of several
    shards only commits, and :meth:`finish` of any writer merges all shards. If the block raises,
    the committed parts stay, and another writer of the same folder continues from them.

    Args:
        folder: the target folder; its parts are in a folder next to it until it is finished.
        schema: the fields to expect; by default those of the first part.
        shard: the shard that this process writes, from 0; None if there is only one writer.
        part_graphs: graphs per part: a kill loses at most this many, and memory must hold them.
        name: the data set's name in messages.
        levels, exclude, check_finite: as for :meth:`GraphStore.from_pyg`, for every part.
        overwrite: replace an existing store when this one is finished.
        keep_order: leave the edges of each graph in their order, as for
            :meth:`GraphStore.from_pyg`.

    Attributes:
        committed: graphs of this shard on disk, and so the index of the next graph to append.

    Raises:
        ValueError: if ``part_graphs`` or ``shard`` is out of range or no whole number.
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
        keep_order: bool = False,
    ) -> None:
        part_graphs = whole_option("part_graphs", part_graphs, 1)
        if shard is not None:
            shard = whole_option("shard", shard, 0)
            if shard >= MOST_SHARDS:
                raise ValueError(f"shard={shard} must be below {MOST_SHARDS}")
        # Absolute, since "." is another folder once it was replaced.
        self.folder: Path = Path(os.path.abspath(Path(folder).expanduser()))
        self._shard, self._part_graphs = shard, part_graphs
        self._levels = dict(levels or {})
        self._exclude, self._check_finite = names_of_fields(exclude), check_finite
        self._overwrite, self._keep_order = overwrite, keep_order
        self._waiting: list[Any] = []
        self._finished = False
        self._parts = parts_folder(self.folder)
        self._name = name or self._parts.stem
        self._unfinished, self._empty = (
            self._parts / f"{shard or 0:05d}{end}" for end in (UNFINISHED, EMPTY)
        )
        _clean(self.folder, self._parts)
        parts = parts_in(self._parts)
        stores = [
            GraphStore.load(path, verify=False)
            for (number, _), path in parts.items()
            if number == (shard or 0)
        ]
        self._number = len(stores)
        self.committed: int = sum(len(store) for store in stores)
        self.schema: Schema | None = None
        self._on_host: set[str] | None = None
        if stores:
            self._expect(stores[0].schema)
            self._on_host = set(stores[0].objects)
        elif schema is not None:
            self._expect(replace(schema, keep_order=keep_order or schema.keep_order))

    # ------------------------------------------------------------------ appending

    def append(self, graph: Any) -> None:
        """Adds a graph, a ``Data`` or ``HeteroData``, which is committed with its part.

        Raises:
            BadGraph: if this completes a part that cannot be stored; the part is dropped.
        """
        self._waiting.append(graph)
        if len(self._waiting) >= self._part_graphs:
            self._write_waiting()

    def extend(self, graphs: Iterable[Any]) -> None:
        """Adds all graphs of a data set, a generator or another store, in their order."""
        if isinstance(graphs, GraphStore):
            self._take_levels(graphs.schema)
            if not (self._exclude or self._check_finite):
                for part in slices(graphs, self._part_graphs):
                    self.append_part(part)
                return
        for graph in graphs:
            self.append(graph)

    def append_part(self, part: GraphColumns) -> None:
        """Adds the graphs of a store as one part, which is committed when this returns."""
        self._write_waiting()
        self._write(part)

    def append_arrays(self, *arrays: Any, **options: Any) -> None:
        """Adds graphs as flat arrays, as one part; see :meth:`GraphStore.from_arrays`."""
        self._write_waiting()
        self._write(GraphStore.from_arrays(*arrays, **options))

    def commit(self) -> None:
        """Writes all pending graphs to disk as a part; from then on they survive a kill.

        The shard counts as complete until more is appended.

        Raises:
            BadGraph: if a pending graph cannot be stored; the message names it.
        """
        self._write_waiting()
        if self._shard is not None:
            self._unfinished.unlink(missing_ok=True)
            if not (self.committed or self._finished):
                self._parts.mkdir(parents=True, exist_ok=True)
                self._empty.touch()

    def _write_waiting(self) -> None:
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
        if self._keep_order:
            store = store.in_first_order()
        last = self.committed + len(store) - 1
        objects = set(store.objects)
        require_same_fields(
            self.schema or self._expect(store.schema),
            store.schema,
            ("those before", f"graphs {self.committed} to {last} of {self._name}"),
            lambda field: field.layout,
            set() if self._on_host is None else self._on_host ^ objects,
        )
        if self._shard is not None and not self._unfinished.exists():
            self._parts.mkdir(parents=True, exist_ok=True)
            self._unfinished.touch()
            self._empty.unlink(missing_ok=True)
        store.verify()
        save(store.with_splits(), self._parts / f"{self._shard or 0:05d}-{self._number:07d}")
        self._on_host = objects
        self._number += 1
        self.committed += len(store)

    def _expect(self, schema: Schema) -> Schema:
        """Expects fields, and their levels, since later lengths could match others by chance."""
        self.schema = schema
        self._take_levels(schema)
        self._keep_order |= schema.keep_order
        return schema

    def _take_levels(self, schema: Schema) -> None:
        levels = {} if schema.hetero else {field.name: field.level for field in schema}
        self._levels = {**levels, **self._levels}

    # ------------------------------------------------------------------ ending

    def finish(
        self,
        splits: Mapping[str, Array] | None = None,
        *,
        merged: bool = True,
        shards: int | None = None,
    ) -> GraphStore:
        """Commits all pending graphs, merges the parts of all shards, and removes the parts.

        Args:
            splits: named lists of graph indices over all shards.
            shards: how many shards were written; by default the last that is there is the last.
            merged: False keeps the parts and adds a list of them: no bytes are copied. Opening the
                store and reading a batch then take longer (:mod:`staticgraph.store.sharded`).
                A kill leaves the parts, with or without a list, or the finished store.

        Raises:
            BadGraph: if there are no graphs, the fields of two parts differ, a shard is missing, or
                the writer of one did not reach its end; the parts stay.
            FileExistsError: if the target exists and ``overwrite`` is false, or is a store in
                shards, which is never replaced.
            StoreCorrupt: if a part is damaged or missing; the parts stay.
        """
        self.commit()
        parts = Shards.of_parts(self._parts, self._name, shards)
        if parts is None:
            raise BadGraph(f"{self.folder} has no graphs yet: append some before finish()")
        for path in sorted(self._parts.glob(f"*{UNFINISHED}")):
            number = int(path.stem)
            raise BadGraph(
                f"the writer of shard {number} did not reach its end, and {self._parts} has what "
                f"it committed: go on from there with StoreWriter(..., shard={number}), or call "
                "its commit() if that is all"
            )
        # Every byte is checked, the headers of files included.
        store = ShardedStore(parts, verify=True).with_splits(**(splits or {}))
        if merged:
            save(store, self.folder, overwrite=self._overwrite)
        else:
            target = Path(os.path.realpath(self.folder))
            require_replaceable(target, KIND, self._overwrite)
            write_list(self._parts, store)
            exchange(self._parts, target)
            for path in target.glob(f"*{EMPTY}"):
                path.unlink()
        finished = GraphStore.load(self.folder)
        if merged:
            _remove_parts(self._parts)
        self._number, self.committed, self._finished = 0, 0, True
        return finished

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


def _remove_parts(parts: Path) -> None:
    """Removes all parts at once, by renaming; a kill leaves no partial set of parts."""
    removed = scratch.beside(parts, "part")
    parts.rename(removed)
    scratch.remove(removed)


def _clean(folder: Path, parts: Path) -> None:
    """Removes parts, left over after a kill, that are already in the finished store.

    They are if the store is newer than all of them and has graphs of as many nodes and edges.
    """
    scratch.clean(parts)
    paths = parts_in(parts).values()
    for path in (parts / MANIFEST, *parts.glob("*.npy")):  # a list, from an interrupted finish()
        path.unlink(missing_ok=True)
    repair(folder)
    if not paths or not (folder / MANIFEST).exists():
        return
    finished = (folder / MANIFEST).stat().st_mtime_ns
    if any((path / MANIFEST).stat().st_mtime_ns > finished for path in paths):
        return
    parts_sizes = [GraphStore.load(path, verify=False).sizes[:, :2] for path in paths]
    sizes = GraphStore.load(folder, verify=False).sizes[:, :2]
    if np.array_equal(np.concatenate(parts_sizes), sizes):
        _remove_parts(parts)
