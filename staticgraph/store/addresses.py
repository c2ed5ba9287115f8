"""Memory addresses of the arrays of open shards, so that one compiled loop can read all of them.

Problem: a batch of a shuffled epoch has graphs from dozens of shards, and one call per shard and
array takes ten times as long as the copying itself. A compiled loop cannot take a list of arrays.
Idea: it takes a table of their addresses, one row per shard, and for each graph the number of its
row.

Invariant: an address is read only while a reference to its store is held, since a mapping ends with
its last reference. Addresses are therefore handed out together with their stores
(:class:`TakenGraphs`).
"""

# numba passes the first argument of an intrinsic itself, and does not export carray publicly.
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.schema import Level, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns


class Opened(NamedTuple):
    """An open store and the addresses of its arrays.

    Attributes:
        store: the store.
        at: ``[A + 3]`` int64: the address of each array of :func:`names_of`, then the addresses of
            the first graphs of its blocks and of the flags that say whether each block was checked,
            then the number of blocks, which is 0 if nothing is left to check.
        kinds: ``[A]`` int64, NumPy's type numbers of the arrays.
    """

    store: GraphColumns
    at: IntArray
    kinds: IntArray

    @classmethod
    def of(cls, store: GraphColumns) -> Self:
        """Collects the addresses of a store that was just opened."""
        arrays = store.arrays()
        held = [arrays[name] for name in names_of(store.schema)]
        marks = [] if store.checks is None else [*store.checks.marks]
        blocks = (0, 0, 0) if not marks else (*map(address, marks), len(marks[1]))
        return cls(
            store,
            np.array([*map(address, held), *blocks], np.int64),
            np.array([array.dtype.num for array in held], np.int64),
        )


def address(array: Array) -> int:
    """Returns the address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def names_of(schema: Schema) -> tuple[str, ...]:
    """Returns the names of a batch's source arrays, as in :meth:`GraphColumns.arrays`."""
    return (
        *map(offsets_name, ("node", "edge", *(axis.name for axis in schema.axes))),
        *("edge_src", "edge_dst", "transpose", "row_ptr"),
        *(f"column.{field.name}" for field in schema),
    )


def offsets_name(level: Level) -> str:
    """Returns the name of the array that says where each graph's rows of a level begin."""
    return f"{level}_offsets" if level in ("node", "edge") else f"offsets.{level}"


class LevelRows(NamedTuple):
    """The rows of some graphs on one level.

    Attributes:
        begins: ``[g]`` where each graph's rows begin in its own store.
        offsets: ``[g + 1]`` where they begin among the rows of all of these graphs.
    """

    begins: IntArray
    offsets: IntArray


class TakenGraphs:
    """Some graphs of several stores; the stores stay open as long as this object exists.

    Args:
        schema: the schema of all stores.
        opened: the stores.
        owners: ``[g]`` index into ``opened`` of the store that holds each graph.
        ids: ``[g]`` int64, index of each graph in that store.
    """

    def __init__(
        self, schema: Schema, opened: Sequence[Opened], owners: IntArray, ids: IntArray
    ) -> None:
        self._names = {name: place for place, name in enumerate(names_of(schema))}
        self._at = _table([each.at for each in opened], len(self._names) + 3)
        self._kinds = _table([each.kinds for each in opened], len(self._names))
        self.stores: list[GraphColumns] = [each.store for each in opened]
        self.owners: IntArray = owners
        self.ids: IntArray = ids

    def __len__(self) -> int:
        return len(self.ids)

    def unchecked(self) -> NDArray[np.bool_]:
        """Returns ``[g]``: whether a graph's block has not been checked yet."""
        found = np.zeros(len(self), np.bool_)
        blocks, done, counts = self._at.T[-3:]
        if counts.any():
            _unchecked(blocks, done, counts, self.owners, self.ids, found)
        return found

    def rows(self, level: Level, of_graph: int = 1) -> LevelRows:
        """Returns the rows of a level; for level ``"graph"``, each graph has ``of_graph`` rows."""
        if level == "graph":
            return LevelRows(self.ids * of_graph, np.arange(len(self) + 1) * of_graph)
        found = LevelRows(np.empty(len(self), np.int64), np.zeros(len(self) + 1, np.int64))
        column = self._at[:, self._names[offsets_name(level)]]
        _rows(column, self.owners, self.ids, found.begins, found.offsets)
        return found

    def copy(self, name: str, rows: LevelRows, target: Array) -> bool:
        """Copies an array's rows of all graphs into ``target``, one graph after the other.

        Returns False, without copying anything, if a store keeps the array in another dtype than
        the target's.
        """
        place, kind = self._names[name], target.dtype.num
        if (self._kinds[:, place] != kind).any():
            return False
        if target.size:
            width = target.itemsize * int(np.prod(target.shape[1:]))
            flat = target.reshape(-1).view(np.uint8)
            _copy(self._at[:, place], self.owners, rows.begins, rows.offsets, width, flat)
        return True


def _table(rows: Sequence[IntArray], width: int) -> IntArray:
    return np.concatenate(rows).reshape(-1, width) if rows else np.empty((0, width), np.int64)


@intrinsic
def _pointer(typing: Any, at: Any) -> Any:
    """Converts an address to the pointer that ``numba.carray`` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emits the conversion of the integer to a pointer."""
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def _copy_bytes(_: Any, target: Any, source: Any, count: Any) -> Any:
    """Calls C's memcpy; slice assignment is twice as slow and compiles five times as long."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emits the copy of ``count`` bytes."""
        cgutils.raw_memcpy(builder, arguments[0], arguments[1], arguments[2], 1)
        return context.get_dummy_value()

    return types.none(types.voidptr, types.voidptr, types.int64), generate


@loop
def _rows(
    addresses: IntArray, owners: IntArray, ids: IntArray, begins: IntArray, offsets: IntArray
) -> None:
    for g in range(len(ids)):
        known = numba.carray(_pointer(addresses[owners[g]]), (ids[g] + 2,), np.int64)
        begins[g] = known[ids[g]]
        offsets[g + 1] = offsets[g] + known[ids[g] + 1] - begins[g]


@loop
def _copy(
    addresses: IntArray,
    owners: IntArray,
    begins: IntArray,
    offsets: IntArray,
    width: int,
    target: Array,
) -> None:
    for g in range(len(owners)):
        at, stop = offsets[g] * width, offsets[g + 1] * width
        first = addresses[owners[g]] + begins[g] * width
        _copy_bytes(_pointer(target.ctypes.data + at), _pointer(first), stop - at)


@loop
def _unchecked(
    blocks: IntArray,
    done: IntArray,
    counts: IntArray,
    owners: IntArray,
    ids: IntArray,
    found: NDArray[np.bool_],
) -> None:
    for g in range(len(ids)):
        count = counts[owners[g]]
        if count:
            firsts = numba.carray(_pointer(blocks[owners[g]]), (count + 1,), np.int64)
            block = np.searchsorted(firsts, ids[g], side="right") - 1
            found[g] = not numba.carray(_pointer(done[owners[g]]), (count,), np.uint8)[block]
