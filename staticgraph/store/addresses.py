"""Where the arrays of open shards stand in memory, so that one compiled loop reads all of them.

The problem: a batch of a shuffled epoch has graphs of dozens of shards, and a call for each shard
and array takes ten times as long as what is copied. A compiled loop takes no list of arrays. The
idea: it takes their addresses, a row a shard, and for each graph the row of its own.

Invariant: an address is read only while the store that it is of is held, since a mapping ends with
the last who holds it. So addresses are handed out together with their stores
(:class:`TakenGraphs`).
"""

# numba gives an intrinsic its first argument itself, and does not list carray among its own.
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

from staticgraph.schema import Level, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns


class Opened(NamedTuple):
    """An open store.

    Attributes:
        store: it.
        at: ``[A + 3]`` int64 the address of each array of :func:`names_of`; then of the first
            graphs of its blocks, of whether each was compared, and how many there are: 0 where
            nothing is left to compare.
        kinds: ``[A]`` int64, NumPy's numbers of their dtypes.
    """

    store: GraphColumns
    at: IntArray
    kinds: IntArray

    @classmethod
    def of(cls, store: GraphColumns) -> Self:
        """A store that was just opened."""
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
    """Of the first byte."""
    return int(array.__array_interface__["data"][0])


def names_of(schema: Schema) -> tuple[str, ...]:
    """The arrays that a batch is copied from, by their names in :meth:`GraphColumns.arrays`."""
    return (
        *map(offsets_name, ("node", "edge", *(axis.name for axis in schema.axes))),
        *("edge_src", "edge_dst", "transpose", "row_ptr"),
        *(f"column.{field.name}" for field in schema),
    )


def offsets_name(level: Level) -> str:
    """The array that says where each graph's rows of a level begin."""
    return f"{level}_offsets" if level in ("node", "edge") else f"offsets.{level}"


class LevelRows(NamedTuple):
    """Some graphs' rows of one level.

    Attributes:
        begins: ``[g]`` where they begin in the graph's own store.
        offsets: ``[g + 1]`` where they begin among all of these graphs'.
    """

    begins: IntArray
    offsets: IntArray


class TakenGraphs:
    """Some graphs of several stores, which stay open as long as this is kept.

    Args:
        schema: of all stores.
        opened: the stores.
        owners: ``[g]`` which of these each graph stands in.
        ids: ``[g]`` int64, where it stands there.
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
        """``[g]`` the graphs whose block was not compared with its checksums yet."""
        found = np.zeros(len(self), np.bool_)
        blocks, done, counts = self._at.T[-3:]
        if counts.any():
            _unchecked(blocks, done, counts, self.owners, self.ids, found)
        return found

    def rows(self, level: Level, of_graph: int = 1) -> LevelRows:
        """The rows of a level; of graphs themselves so many each."""
        if level == "graph":
            return LevelRows(self.ids * of_graph, np.arange(len(self) + 1) * of_graph)
        found = LevelRows(np.empty(len(self), np.int64), np.zeros(len(self) + 1, np.int64))
        column = self._at[:, self._names[offsets_name(level)]]
        _rows(column, self.owners, self.ids, found.begins, found.offsets)
        return found

    def copy(self, name: str, rows: LevelRows, target: Array) -> bool:
        """Copies an array's rows to where they begin among all; False, and nothing was done, where
        a store keeps it in another dtype than the target's."""
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
    """An address as what ``numba.carray`` reads from."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Code: the number as a pointer."""
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@intrinsic
def _copy_bytes(_: Any, target: Any, source: Any, count: Any) -> Any:
    """C's memcpy. Slices are given by a loop, twice as slow, and five times as long to compile."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Code: the copy of so many bytes."""
        cgutils.raw_memcpy(builder, arguments[0], arguments[1], arguments[2], 1)
        return context.get_dummy_value()

    return types.none(types.voidptr, types.voidptr, types.int64), generate


@numba.njit(cache=True, nogil=True)
def _rows(
    addresses: IntArray, owners: IntArray, ids: IntArray, begins: IntArray, offsets: IntArray
) -> None:
    for g in range(len(ids)):
        known = numba.carray(_pointer(addresses[owners[g]]), (ids[g] + 2,), np.int64)
        begins[g] = known[ids[g]]
        offsets[g + 1] = offsets[g] + known[ids[g] + 1] - begins[g]


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
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
