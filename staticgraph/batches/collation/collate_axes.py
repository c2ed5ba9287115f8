"""Writes the parts of a batch that are neither plain nodes, edges nor graphs into a slot.

Axes (triplets, the second side of a pair, the nodes and edges of one type) get their masks, the
graph of each row and their pointers. Index fields get each value raised by the number of rows
before its graph. An index in a padding row refers to padding rows of what it counts, spread evenly
and ascending, so that its gathers and scatters stay within padding; if these are of the data set's
own kind, to the first of them alone, which a sum has even if its size is taken from another index.
Every element is written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.jit import loop
from staticgraph.schema import Field, Level
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.indices import counted

# Padding nodes of all types are placed on one line, each type shifted by this much from the one
# before, so that no two of eight types coincide.
BETWEEN_TYPES = 0.125


def fill_axes(
    store: GraphColumns, ids: IntArray, layout: SlotLayout, arrays: dict[str, Array]
) -> None:
    """Writes masks, graphs and pointers of every axis."""
    for axis in layout.schema.axes:
        fill_axis(store, ids, axis.name, arrays)


def fill_axis(store: GraphColumns, ids: IntArray, level: Level, arrays: dict[str, Array]) -> None:
    """Writes mask, graphs and pointers of a level; those of nodes have their own names."""
    start = "" if level == "node" else f"{level}_"
    _axis(
        ids,
        store.offsets_of(level),
        arrays[f"{level}_mask"],
        arrays[f"{start}batch"],
        arrays[f"{start}ptr"],
    )


@loop
def _axis(ids: IntArray, offsets: IntArray, mask: Array, batch: Array, ptr: Array) -> None:
    real, at = len(ids), 0
    for g in range(real):
        rows = offsets[ids[g] + 1] - offsets[ids[g]]
        ptr[g] = at
        batch[at : at + rows] = g
        at += rows
    mask[:at] = True
    mask[at:] = False
    graphs, spare = len(ptr) - 1 - real, len(mask) - at
    for g in range(graphs + 1):
        ptr[real + g] = at + g * spare // graphs
    for g in range(graphs):
        batch[ptr[real + g] : ptr[real + g + 1]] = real + g


def fill_index(
    store: GraphColumns, ids: IntArray, layout: SlotLayout, field: Field, target: Array
) -> None:
    """Writes a field whose values count rows, or whose rows are not the leading dimension."""
    before = np.zeros((field.width, len(ids) + 1), np.int64)
    spare = np.zeros(field.width, np.int64)
    for place, level in counted(field):
        before[place] = _before(store, ids, level)
        spare[place] = layout.capacity.rows(level) - before[place, -1]
        axis = layout.schema.axis(level)
        if axis is not None and axis.kind == "rows":
            spare[place] = min(1, spare[place])
    apart = np.zeros(field.width, np.int64)
    if field.name.endswith(".edge_index") and field.counts[0] == field.counts[1]:
        apart[0] = layout.schema.positions_of(field.counts[0]) is not None and spare[0] > 1
    rows = field.rows if field.level == "graph" else 0
    offsets = np.empty(0, np.int64) if rows else store.offsets_of(field.level)
    source = store.columns[field.name].reshape(-1, field.width)
    front = int(np.prod(field.shape[: field.cat_dim or 0], dtype=np.int64))
    _index_rows(
        ids,
        offsets,
        rows,
        source,
        target.reshape(front, -1, field.width // max(1, front)),
        before,
        spare,
        apart,
    )


def _before(store: GraphColumns, ids: IntArray, level: Level) -> IntArray:
    """``[g + 1]``: how many rows of a level precede each graph of the batch, and the total."""
    if level == "graph":
        return np.arange(len(ids) + 1)
    offsets = store.offsets_of(level)
    before = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(offsets[ids + 1] - offsets[ids], out=before[1:])
    return before


@loop
def _index_rows(
    ids: IntArray,
    offsets: IntArray,
    rows: int,
    source: Array,
    target: Array,
    before: IntArray,
    spare: IntArray,
    apart: IntArray,
) -> None:
    """Copies ``source [., W]`` to ``target [front, rows, back]``, raised by ``before``.

    There are ``rows`` rows per graph, or as many as ``offsets`` say if that is 0.
    """
    front, _, back = target.shape
    at = 0
    for g in range(len(ids)):
        first = ids[g] * rows if rows else offsets[ids[g]]
        count = rows if rows else offsets[ids[g] + 1] - first
        for p in range(front):
            for k in range(count):
                for q in range(back):
                    place = p * back + q
                    target[p, at + k, q] = source[first + k, place] + before[place, g]
        at += count
    padding = target.shape[1] - at
    for p in range(front):
        for q in range(back):
            place = p * back + q
            end, room = before[place, -1], spare[place]
            step = apart[place] if p == 0 else 0
            same = apart[0]  # leaves room for a second end that is one row before the first
            for k in range(padding):
                if room == 0:
                    target[p, at + k, q] = 0
                else:
                    target[p, at + k, q] = end + k * (room - same) // padding + step


def stand_apart(
    layout: SlotLayout, arrays: dict[str, Array], real_rows: Callable[[Level], int]
) -> None:
    """Places padding nodes one apart on a line, since zero distances have no second derivative."""
    levels = [axis.name for axis in layout.schema.node_axes] or ["node"]
    for number, level in enumerate(levels):
        if name := layout.schema.positions_of(level):
            line = arrays[name].reshape(layout.capacity.rows(level), -1)[real_rows(level) :, 0]
            line += (np.arange(len(line)) + number * BETWEEN_TYPES).astype(line.dtype)
