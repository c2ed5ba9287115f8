"""Opens the shards of a store when they are read.

A *shard* is a complete store, with its own manifest and checksums;
:mod:`staticgraph.store.shard_list` lists them. Invariant: a shard is complete and is the one that
was listed, or it is rejected with an error that names it. The number of shards open at a time is
limited by the number of file descriptors.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from staticgraph.errors import StoreCorrupt
from staticgraph.files import document
from staticgraph.files.folder import repair
from staticgraph.schema import Schema
from staticgraph.store import files
from staticgraph.store.addresses import Opened
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.shard_list import REMEDY, Shard, ShardList
from staticgraph.text.how_many import how_many

# File descriptors left for everything else; each array of an open shard holds one.
SPARE_DESCRIPTORS = 256


class OpenShards:
    """The shards by number, opened on access; the most recently used ones stay open.

    Args:
        shards: the list of shards.
        name: the store's name, for messages.
        schema: the schema of all shards.
        arrays: the number of arrays per shard; each holds a file descriptor.
    """

    def __init__(self, shards: Sequence[Shard], name: str, schema: Schema, arrays: int) -> None:
        self._shards, self._name = shards, name
        self._fields = _layout(schema)
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most: int = max(4, (descriptors - SPARE_DESCRIPTORS) // max(1, arrays))
        self._open: OrderedDict[int, Opened] = OrderedDict()
        self._checked: dict[int, NDArray[np.bool_] | None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> GraphColumns:
        """Returns one shard, with its columns mapped.

        Raises:
            StoreCorrupt: if it is not what was listed, or not on this machine.
        """
        return self.several((number,))[0].store

    def several(self, numbers: Sequence[int]) -> list[Opened]:
        """Returns some shards, each of which stays open as long as the result is referenced.

        Raises:
            StoreCorrupt: if one is not what was listed, or not on this machine.
        """
        with self._lock:
            found = [self._open.get(number) for number in numbers]
            for number, opened in zip(numbers, found, strict=True):
                if opened is not None:
                    self._open.move_to_end(number)
        return [
            opened or self._kept(number, self._opened(number, False))
            for number, opened in zip(numbers, found, strict=True)
        ]

    def compare(self, number: int) -> None:
        """Checks every byte of a shard now.

        Raises:
            StoreCorrupt: if it is not what was listed.
        """
        self._kept(number, self._opened(number, True))

    def _kept(self, number: int, store: GraphColumns) -> Opened:
        """Keeps a shard open, and closes the least recently used ones beyond the limit."""
        found = Opened.of(store)
        with self._lock:
            self._open[number] = found
            self._open.move_to_end(number)
            while len(self._open) > self.most:
                oldest, (closed, _, _) = self._open.popitem(last=False)
                self._checked[oldest] = None if closed.checks is None else closed.checks.done
        return found

    def named(self, number: int, error: BaseException) -> StoreCorrupt:
        """Returns the error as a StoreCorrupt that names the shard."""
        return StoreCorrupt(
            f"shard {number} of the {len(self._shards)} of {self._name}: {error}. The others are "
            f"as they were: {REMEDY}"
        )

    def _opened(self, number: int, verify: bool) -> GraphColumns:
        shard = self._shards[number]
        try:
            if document.digest(files.read_manifest(shard.folder)) != shard.digest:
                raise StoreCorrupt(f"{shard.folder} is not the store that was listed")
            store = files.load(GraphColumns, shard.folder, verify=verify)
            if (len(store), _layout(store.schema)) != (shard.graphs, self._fields):
                raise StoreCorrupt(f"{shard.folder} has other graphs or fields than were listed")
        except FileNotFoundError:
            raise self.named(number, FileNotFoundError(f"{shard.folder} is not here")) from None
        except StoreCorrupt as error:
            raise self.named(number, error) from None
        if number in self._checked and store.checks is not None:
            done = self._checked[number]
            if done is None:
                return replace(store, checks=None)
            store.checks.resume(done)
        return store

    def parts(self) -> list[Callable[[], GraphColumns]]:
        """Returns a function per shard that opens it, for :func:`staticgraph.store.merge.merge`."""
        return [partial(self.__getitem__, number) for number in range(len(self))]


def _layout(schema: Schema) -> tuple[object, object]:
    """Returns the part of a schema that all shards must share."""
    return {field.layout for field in schema}, schema.axes


def check_whole(shards: OpenShards, found: ShardList, absent: bool) -> None:
    """Compares the size of each shard with the list, to find truncation at once.

    Args:
        shards: opens a shard whose size differs, to find the file's name for the message.
        found: the list.
        absent: whether shards may be missing.

    Raises:
        StoreCorrupt: if a size differs or a shard is missing; the message names the shard, and the
            file if known.
    """
    for number, shard in enumerate(found.shards):
        repair(shard.folder)
        if not shard.folder.is_dir():
            if absent:
                continue
            raise shards.named(
                number,
                FileNotFoundError(
                    f"{shard.folder} is not here (where each host has only its ranks' shards, "
                    "load with shards='by-rank')"
                ),
            )
        with os.scandir(shard.folder) as entries:
            there = sum(e.stat().st_size for e in entries if e.name != files.MANIFEST)
        if there != shard.nbytes:
            shards[number]  # raises with the file's name, if one of the store's own is wrong
            raise shards.named(
                number,
                ValueError(
                    f"{shard.folder} has {how_many(there, 'byte')}, listed are {shard.nbytes}"
                ),
            )
