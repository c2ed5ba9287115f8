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

from staticgraph.batches.slots.real_counts import RealCounts
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


def fill_axis(store: GraphColumns, ids: IntArray, level: Level, arrays: dict[str, Array]) -> None:
    """Writes the graph of each real row of a level, and where each graph's rows begin."""
    start = "" if level == "node" else f"{level}_"
    _axis(ids, store.offsets_of(level), arrays[f"{start}batch"], arrays[f"{start}ptr"])


def pad_axes(layout: SlotLayout, arrays: dict[str, Array], real: RealCounts) -> None:
    """Writes masks, graphs and pointers of nodes and axes after their real rows.

    Padding rows are spread evenly over padding graphs, the same ones for every level that has any:
    what relates the rows of two levels in each graph, as attention between the sides of a pair, is
    not finite where one of them is missing.
    """
    levels = [*(() if layout.schema.hetero else ("node",)), *layout.axes]
    spare = {level: layout.capacity.rows(level) - real.of(level) for level in levels}
    graphs = layout.capacity.graphs - real.graphs
    if layout.axes:
        graphs = min((graphs, *(rows for rows in spare.values() if rows)))
    for level in levels:
        start = "" if level == "node" else f"{level}_"
        rows, batch, ptr = real.of(level), arrays[f"{start}batch"], arrays[f"{start}ptr"]
        mask_rows(arrays[f"{level}_mask"], rows)
        _pad_axis(spare[level], batch, ptr, rows, real.graphs, graphs)


def mask_rows(mask: Array, rows: int) -> None:
    """Writes a mask of the first ``rows`` rows."""
    mask[:rows] = True
    mask[rows:] = False


@loop
def _axis(ids: IntArray, offsets: IntArray, batch: Array, ptr: Array) -> None:
    at = 0
    for g in range(len(ids)):
        rows = offsets[ids[g] + 1] - offsets[ids[g]]
        ptr[g] = at
        batch[at : at + rows] = g
        at += rows


@loop
def _pad_axis(spare: int, batch: Array, ptr: Array, rows: int, real: int, graphs: int) -> None:
    for g in range(len(ptr) - real):
        ptr[real + g] = rows + min(g, graphs) * spare // graphs
    for g in range(graphs):
        batch[ptr[real + g] : ptr[real + g + 1]] = real + g


def fill_index(store: GraphColumns, ids: IntArray, field: Field, target: Array) -> None:
    """Writes the real rows of a field whose values count rows, or whose rows are not the leading
    dimension."""
    before = np.zeros((field.width, len(ids)), np.int64)
    for place, level in counted(field):
        before[place] = _before(store, ids, level)
    rows = field.rows if field.level == "graph" else 0
    offsets = np.empty(0, np.int64) if rows else store.offsets_of(field.level)
    source = store.columns[field.name].reshape(-1, field.width)
    _index_rows(ids, offsets, rows, source, _in_parts(field, target), before)


def pad_index(layout: SlotLayout, field: Field, target: Array, real: RealCounts) -> None:
    """Writes the padding rows of such a field."""
    end, spare, apart = np.zeros((3, field.width), np.int64)
    for place, level in counted(field):
        end[place] = real.of(level)
        spare[place] = layout.capacity.rows(level) - end[place]
        axis = layout.schema.axis(level)
        if axis is not None and axis.kind == "rows":
            spare[place] = min(1, spare[place])
    if field.name.endswith(".edge_index") and field.counts[0] == field.counts[1]:
        apart[0] = layout.schema.positions_of(field.counts[0]) is not None and spare[0] > 1
    joined = layout.apart and field.name in layout.schema.ends and spare[0] > 1
    if joined and field.name == layout.schema.ends[-1]:
        apart[0] = 1
    rows = real.of(field.level) * field.rows
    _pad_index(_in_parts(field, target), rows, end, spare, apart, max(apart[0], joined))


def _in_parts(field: Field, target: Array) -> Array:
    """Returns an index field as ``[front, rows, back]``, where front and back are one row."""
    front = int(np.prod(field.shape[: field.cat_dim or 0], dtype=np.int64))
    return target.reshape(front, -1, field.width // max(1, front))


def _before(store: GraphColumns, ids: IntArray, level: Level) -> IntArray:
    """``[g]``: how many rows of a level precede each graph of the batch."""
    if level == "graph":
        return np.arange(len(ids))
    offsets = store.offsets_of(level)
    counts = offsets[ids + 1] - offsets[ids]
    return np.cumsum(counts) - counts


@loop
def _index_rows(
    ids: IntArray,
    offsets: IntArray,
    rows: int,
    source: Array,
    target: Array,
    before: IntArray,
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


@loop
def _pad_index(
    target: Array, at: int, ends: IntArray, spare: IntArray, apart: IntArray, same: int
) -> None:
    """Writes padding rows; ``same`` leaves room for a second end that is one row further."""
    front, rows, back = target.shape
    padding = rows - at
    for p in range(front):
        for q in range(back):
            place = p * back + q
            end, room = ends[place], spare[place]
            step = apart[place] if p == 0 else 0
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
