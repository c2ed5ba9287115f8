"""Some graphs of several stores -> a small store of them, for the batch that they go into.

The loops that fill a batch read flat columns, and the columns of shards are as many as there are
shards. So the graphs of one batch are first copied together, shard by shard and array by array,
each to the place that its graph has in the batch. A batch is a few hundred graphs, so this is one
more copy of what is copied anyway; what it costs is the calls, one a shard and array, so graphs
of few shards (``shuffle="blocks"``) go faster than the same number of many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numba
import numpy as np

from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns

Dtypes = Mapping[str, np.dtype]


class Piece(NamedTuple):
    """Graphs of one store.

    Attributes:
        store: it.
        ids: ``[k]`` int64 positions in it.
        places: ``[k]`` int64, where they stand among all that are gathered.
    """

    store: GraphColumns
    ids: IntArray
    places: IntArray


def gathered(
    schema: Schema, dtypes: Dtypes, pieces: Sequence[Piece], graphs: int, pointers: bool
) -> GraphColumns:
    """One store of all pieces' graphs, at their places.

    Args:
        schema: of all stores.
        dtypes: of each array, one that holds every store's.
        pieces: their places are ``0 .. graphs - 1``, each once.
        graphs: in all.
        pointers: fill ``row_ptr`` and ``transpose``, too.
    """
    levels = ["node", "edge", *(axis.name for axis in schema.axes)]
    offsets = {level: _offsets(level, pieces, graphs) for level in levels}
    plain = not (schema.hetero or schema.two_sided)
    none = np.empty(0, np.int64)
    arrays: dict[str, Array] = dict.fromkeys(("edge_src", "edge_dst", "transpose"), none)
    for name in arrays if plain else ():
        if pointers or name != "transpose":
            target = np.empty(int(offsets["edge"][-1]), dtypes[name])
            for piece in pieces:
                _copy(piece, "edge", getattr(piece.store, name), target, offsets["edge"], 1)
            arrays[name] = target
    columns: dict[str, Array] = {}
    for field in schema:
        dtype = dtypes[f"column.{field.name}"]
        if field.level == "graph":
            target = np.empty((graphs, field.rows, *field.shape), dtype)
            for piece in pieces:
                source = piece.store.columns[field.name]
                rows = source.reshape(len(piece.store), field.rows, *field.shape)
                target[piece.places] = rows[piece.ids]
            columns[field.name] = target.reshape(graphs * field.rows, *field.shape)
            continue
        target = np.empty((int(offsets[field.level][-1]), *field.shape), dtype)
        for piece in pieces if field.width else ():
            source = piece.store.columns[field.name]
            _copy(piece, field.level, source, target, offsets[field.level], field.width)
        columns[field.name] = target
    return GraphColumns(
        schema=schema,
        node_offsets=offsets["node"],
        edge_offsets=offsets["edge"],
        edge_src=arrays["edge_src"],
        edge_dst=arrays["edge_dst"],
        row_ptr=_row_pointers(pieces, offsets) if plain and pointers else none,
        transpose=arrays["transpose"],
        edge_origin=none,
        columns=columns,
        offsets={axis.name: offsets[axis.name] for axis in schema.axes},
    )


def _offsets(level: str, pieces: Sequence[Piece], graphs: int) -> IntArray:
    """``[graphs + 1]`` where each graph's rows begin."""
    offsets = np.zeros(graphs + 1, np.int64)
    for store, ids, places in pieces:
        begins = store.offsets_of(level)
        offsets[places + 1] = begins[ids + 1] - begins[ids]
    return np.cumsum(offsets, out=offsets)


def _copy(
    piece: Piece, level: str, source: Array, target: Array, offsets: IntArray, width: int
) -> None:
    """A piece's rows to where its graphs stand in the target, ``width`` values a row."""
    begins = piece.store.offsets_of(level)
    if source.dtype == target.dtype:  # one compiled copy of bytes serves every dtype
        width *= source.dtype.itemsize
        source, target = source.reshape(-1).view(np.uint8), target.reshape(-1).view(np.uint8)
        _copy_bytes(piece.ids, piece.places, begins, offsets, width, source, target)
        return
    counts = begins[piece.ids + 1] - begins[piece.ids]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.repeat(begins[piece.ids], counts) + within
    target[np.repeat(offsets[piece.places], counts) + within] = source[rows]


@numba.njit(cache=True, nogil=True)
def _copy_bytes(
    ids: IntArray,
    places: IntArray,
    begins: IntArray,
    offsets: IntArray,
    width: int,
    source: Array,
    target: Array,
) -> None:
    for k in range(len(ids)):
        first, at = begins[ids[k]] * width, offsets[places[k]] * width
        count = begins[ids[k] + 1] * width - first
        target[at : at + count] = source[first : first + count]


def _row_pointers(pieces: Sequence[Piece], offsets: Mapping[str, IntArray]) -> Array:
    """``[nodes + 1]`` where each node's incoming edges begin among all edges."""
    nodes, edges = offsets["node"], offsets["edge"]
    target = np.empty(int(nodes[-1]) + 1, pointer_dtype(int(edges[-1])))
    target[-1] = edges[-1]
    for store, ids, places in pieces:
        _shift_pointers(
            ids, places, store.node_offsets, store.edge_offsets, nodes, edges, store.row_ptr, target
        )
    return target


@numba.njit(cache=True, nogil=True)
def _shift_pointers(
    ids: IntArray,
    places: IntArray,
    node_begins: IntArray,
    edge_begins: IntArray,
    nodes: IntArray,
    edges: IntArray,
    source: Array,
    target: Array,
) -> None:
    for k in range(len(ids)):
        first, at = node_begins[ids[k]], nodes[places[k]]
        shift = edges[places[k]] - edge_begins[ids[k]]
        for v in range(node_begins[ids[k] + 1] - first):
            target[at + v] = source[first + v] + shift
