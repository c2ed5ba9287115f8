"""Writes graphs of a store into the arrays of a slot, including padding and masks.

One pass over flat columns in numba, without the interpreter lock: about a microsecond per molecule.
Every fill writes every element of the slot, so nothing of an earlier batch remains in the tail:

* padding rows hold the values of a real row, so that what is finite on real rows (a logarithm, a
  division) is finite on them: the last row of edges and of graphs, and for nodes the two ends of
  the last edge in turn. Fields with missing values are zero there, as is a batch without graphs;
* padding nodes are spread evenly over the padding graphs (where there are other rows, too, see
  :func:`~staticgraph.batches.collation.collate_axes.pad_axes`), and padding edges are self-loops of
  them, spread evenly and ascending: a single hot node would serialise atomic additions, and the
  edges stay sorted by destination. Where edges keep their order, two of them form a pair;
* if nodes have vectors (a float field of three numbers), a padding edge joins two neighbours: a
  distance of zero has no second derivative, and the NaN would reach every weight of a force
  model. A lone padding node keeps its self-loops. Positions (a float field ``pos``) are placed one
  apart on a line, beginning at those of a real node;
* ``graph_ids`` is -1 on padding graphs, and the masks say what is real. They are stored, never
  inferred: jraph infers them from trailing empty graphs and mistakes real empty graphs for padding.
"""

from __future__ import annotations

import numpy as np

from staticgraph.batches.collation.collate_axes import (
    fill_axis,
    fill_index,
    mask_rows,
    pad_axes,
    pad_index,
    stand_apart,
)
from staticgraph.batches.slots.real_counts import RealCounts, real_counts
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.jit import loop
from staticgraph.kernels.collate.arguments import LINE, ZERO
from staticgraph.schema import COUNTS, Field
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns

# The bit pattern of every byte's value in half precision.
HALVES = np.arange(256).astype(np.float16).view(np.uint16)


def fill(
    store: GraphColumns, ids: IntArray, layout: SlotLayout, arrays: dict[str, Array]
) -> RealCounts:
    """Writes graphs ``ids`` (int64 positions in the store, in this order) into a slot.

    Args:
        store: the graphs.
        ids: which graphs; empty gives a batch of padding alone.
        layout: the bucket's layout.
        arrays: the slot's arrays, every element of which is overwritten.

    Raises:
        GraphTooLarge: together the graphs exceed the bucket; the slot is left as it was.
    """
    stored = np.ascontiguousarray(ids, dtype=np.int64)
    store, ids = store.held(stored, layout.pointers)
    real = real_counts(store, ids, layout.capacity, stored)
    schema = layout.schema
    if schema.one_kind:
        _structure(
            ids,
            store.node_offsets,
            store.edge_offsets,
            store.edge_src,
            store.edge_dst,
            arrays["edge_index"],
            arrays["batch"],
            arrays["ptr"],
        )
    for level in ("node", *layout.axes) if schema.two_sided else layout.axes:
        fill_axis(store, ids, level, arrays)
    for field in schema:
        if field.width and field.is_index:
            fill_index(store, ids, field, arrays[field.name])
    for field, _ in layout.paddings:
        _fill_field(store, ids, field, arrays[field.name])
    arrays["graph_ids"][: len(stored)] = stored
    pad_rows(layout, arrays, real)
    if layout.pointers:
        _pointers(
            ids,
            store.node_offsets,
            store.edge_offsets,
            store.row_ptr,
            store.transpose,
            arrays["edge_index"],
            arrays["row_ptr"],
            arrays["col_ptr"],
            arrays["transpose"],
        )
    return real


def pad_rows(layout: SlotLayout, arrays: dict[str, Array], real: RealCounts) -> None:
    """Writes everything of a slot that follows from its real rows: masks, counts and padding.

    Args:
        layout: the bucket's layout.
        arrays: the slot's arrays; the real rows of the fields, of ``edge_index``, of ``graph_ids``,
            and of every ``batch`` and ``ptr`` are there.
        real: how many rows of each level are real.
    """
    schema = layout.schema
    arrays[COUNTS][:3] = real[:3]
    for place, (_, rows) in enumerate(real.extra, start=3):
        arrays[COUNTS][place] = rows
    mask_rows(arrays["graph_mask"], real.graphs)
    arrays["graph_ids"][real.graphs :] = -1
    pad_axes(layout, arrays, real)
    if not schema.hetero:
        mask_rows(arrays["edge_mask"], real.edges)
    if schema.one_kind:
        edge_index = arrays["edge_index"]
        spare = len(arrays["batch"]) - real.nodes
        _pad_edges(edge_index, real.nodes, real.edges, spare, layout.apart, schema.keep_order)
    for field in schema:
        if field.width and field.is_index:
            pad_index(layout, field, arrays[field.name], real)
    ends = None  # source and destination of the last edge
    if real.edges and schema.one_kind:
        ends = arrays["edge_index"][:, real.edges - 1].tolist()
    for field, padding in layout.paddings:
        target = arrays[field.name]
        rows = real.of(field.level)
        if field.pad:
            tail = target.reshape(-1, field.rows * field.width)[rows:]
            tail[:] = np.array(field.pad).astype(target.dtype)
            continue
        even = odd = -1 if padding == ZERO else rows - 1
        if field.level == "node" and padding != ZERO and ends is not None:
            odd, even = (ends[1], ends[1]) if padding == LINE else ends
        width = field.width * field.rows * target.itemsize
        _pad(target.reshape(-1).view(np.uint8), width, rows, even, odd)
    stand_apart(layout, arrays, real.of)


def _fill_field(store: GraphColumns, ids: IntArray, field: Field, target: Array) -> None:
    """Writes the rows of one field, widened to its dtype."""
    source, width = store.columns[field.name], field.width
    if field.level == "graph":
        rows = source.reshape(len(store), field.rows, *field.shape)
        target.reshape(-1, field.rows, *field.shape)[: len(ids)] = rows[ids]
        return
    offsets = store.offsets_of(field.level)
    if (source.dtype, target.dtype) == (np.uint8, np.float16):  # numba has no float16
        bits = target.view(np.uint16).reshape(-1)
        _look_up_rows(ids, offsets, width, HALVES, source.reshape(-1), bits)
        return
    if source.dtype == target.dtype:  # a single compiled copy of bytes serves every dtype
        width *= source.dtype.itemsize
        source, target = source.view(np.uint8), target.view(np.uint8)
    _copy_rows(ids, offsets, width, source.reshape(-1), target.reshape(-1))


@loop
def _pad(target: Array, width: int, rows: int, even: int, odd: int) -> None:
    """Copies rows ``even`` and ``odd`` in turn, zeros for -1, after the first ``rows``."""
    copied = even
    for at in range(rows * width, len(target), width):
        for k in range(width):
            target[at + k] = target[copied * width + k] if copied >= 0 else 0
        copied = odd if copied == even else even


@loop
def _structure(
    ids: IntArray,
    node_offsets: IntArray,
    edge_offsets: IntArray,
    edge_src: Array,
    edge_dst: Array,
    edge_index: Array,
    batch: Array,
    ptr: Array,
) -> None:
    """Writes the edges, the graph of each node and where its nodes begin, of real graphs."""
    node, edge = 0, 0
    for g in range(len(ids)):
        i = ids[g]
        n = node_offsets[i + 1] - node_offsets[i]
        e = edge_offsets[i + 1] - edge_offsets[i]
        ptr[g] = node
        batch[node : node + n] = g
        first = edge_offsets[i]
        src, dst = edge_src[first : first + e], edge_dst[first : first + e]
        to_src, to_dst = edge_index[0, edge : edge + e], edge_index[1, edge : edge + e]
        for k in range(e):
            to_src[k] = node + src[k]
            to_dst[k] = node + dst[k]
        node += n
        edge += e


@loop
def _pad_edges(
    edge_index: Array, nodes: int, edges: int, spare_nodes: int, apart: bool, paired: bool
) -> None:
    spare_edges = edge_index.shape[1] - edges
    step = 1 if apart and spare_nodes > 1 else 0
    for k in range(spare_edges):
        second = k % 2 if paired else 0  # the reverse of the edge before it
        target = nodes + (k - second) * (spare_nodes - step) // spare_edges
        edge_index[second, edges + k] = target + step
        edge_index[1 - second, edges + k] = target


@loop
def _pointers(
    ids: IntArray,
    node_offsets: IntArray,
    edge_offsets: IntArray,
    store_row_ptr: Array,
    store_transpose: Array,
    edge_index: Array,
    row_ptr: Array,
    col_ptr: Array,
    transpose: Array,
) -> None:
    """Moves each graph's pointers, as the store keeps them, to the graph's place in the batch.

    Padding edges ascend by either end after the real ones, so they need no sorting.
    """
    nodes, edges = len(row_ptr) - 1, edge_index.shape[1]
    node, edge = 0, 0
    for i in ids:
        first_node, first_edge = node_offsets[i], edge_offsets[i]
        n, e = node_offsets[i + 1] - first_node, edge_offsets[i + 1] - first_edge
        for v in range(n):
            row_ptr[node + v] = edge + store_row_ptr[first_node + v] - first_edge
        for k in range(e):
            transpose[edge + k] = edge + store_transpose[first_edge + k]
        node += n
        edge += e
    for k in range(edge, edges):
        transpose[k] = k
    k = edge
    for v in range(node, nodes + 1):
        while k < edges and edge_index[1, k] < v:
            k += 1
        row_ptr[v] = k
    k = 0
    for v in range(nodes + 1):
        while k < edges and edge_index[0, transpose[k]] < v:
            k += 1
        col_ptr[v] = k


@loop
def _copy_rows(ids: IntArray, offsets: IntArray, width: int, source: Array, target: Array) -> None:
    """Concatenates the rows of ``ids``, widening the dtype."""
    at = 0
    for g in ids:
        first = offsets[g] * width
        count = offsets[g + 1] * width - first
        rows, place = source[first : first + count], target[at : at + count]
        for k in range(count):
            place[k] = rows[k]
        at += count


@loop
def _look_up_rows(
    ids: IntArray, offsets: IntArray, width: int, lookup: Array, source: Array, target: Array
) -> None:
    """Does the work of :func:`_copy_rows` on ``lookup[source]``."""
    at = 0
    for g in ids:
        for k in range(offsets[g] * width, offsets[g + 1] * width):
            target[at] = lookup[source[k]]
            at += 1
