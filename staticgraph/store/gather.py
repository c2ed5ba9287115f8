"""Gathers the graphs of a batch from several stores into one small store.

The loops that fill a batch read flat columns, but a store in shards has one set of columns per
shard. The graphs of one batch are therefore first gathered, array by array, in batch order. A batch
has a few hundred graphs, so this adds one copy of data that is copied anyway. One call per array
copies from all shards (:mod:`staticgraph.store.addresses`); an array that shards keep in different
dtypes takes one copy per shard.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from staticgraph.jit import loop
from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store.addresses import LevelRows, TakenGraphs
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns

Dtypes = Mapping[str, np.dtype]


def gathered(schema: Schema, dtypes: Dtypes, taken: TakenGraphs, pointers: bool) -> GraphColumns:
    """Copies graphs into one store, in their order.

    Args:
        schema: the schema of all stores.
        dtypes: for each array, a dtype that holds the values of every store.
        taken: the graphs.
        pointers: also fill ``row_ptr`` and ``transpose``.
    """
    levels = ["node", "edge", *(axis.name for axis in schema.axes)]
    rows = {level: taken.rows(level) for level in levels}
    pointers &= schema.has_pointers
    none = np.empty(0, np.int64)
    arrays: dict[str, Array] = dict.fromkeys(("edge_src", "edge_dst", "transpose"), none)
    for name in arrays if schema.one_kind else ():
        if pointers or name != "transpose":
            arrays[name] = np.empty(int(rows["edge"].offsets[-1]), dtypes[name])
            _copy(taken, name, rows["edge"], arrays[name])
    columns: dict[str, Array] = {}
    for field in schema:
        name = f"column.{field.name}"
        here = taken.rows("graph", field.rows) if field.level == "graph" else rows[field.level]
        columns[field.name] = np.empty((int(here.offsets[-1]), *field.shape), dtypes[name])
        _copy(taken, name, here, columns[field.name])
    return GraphColumns(
        schema=schema,
        node_offsets=rows["node"].offsets,
        edge_offsets=rows["edge"].offsets,
        edge_src=arrays["edge_src"],
        edge_dst=arrays["edge_dst"],
        row_ptr=_row_pointers(taken, rows["node"], rows["edge"]) if pointers else none,
        transpose=arrays["transpose"],
        edge_origin=none,
        columns=columns,
        offsets={axis.name: rows[axis.name].offsets for axis in schema.axes},
    )


def _copy(taken: TakenGraphs, name: str, rows: LevelRows, target: Array) -> None:
    """Copies an array's rows of all graphs, widened if their stores keep it in different dtypes."""
    if taken.copy(name, rows, target):
        return
    begins, offsets = rows
    for number, store in enumerate(taken.stores):
        places = np.flatnonzero(taken.owners == number)
        counts = offsets[places + 1] - offsets[places]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        source = store.arrays()[name]
        target[np.repeat(offsets[places], counts) + within] = source[
            np.repeat(begins[places], counts) + within
        ]


def _row_pointers(taken: TakenGraphs, nodes: LevelRows, edges: LevelRows) -> Array:
    """Returns ``[nodes + 1]``: where each node's incoming edges begin among all edges."""
    target = np.empty(int(nodes.offsets[-1]) + 1, pointer_dtype(int(edges.offsets[-1])))
    if not taken.copy("row_ptr", nodes, target[:-1]):
        wide = np.empty(len(target) - 1, np.int64)
        _copy(taken, "row_ptr", nodes, wide)
        _shift(nodes.offsets, edges.offsets - np.append(edges.begins, 0), wide)
        target[:-1] = wide
    else:
        _shift(nodes.offsets, edges.offsets - np.append(edges.begins, 0), target)
    target[-1] = edges.offsets[-1]
    return target


@loop
def _shift(offsets: IntArray, by: IntArray, values: Array) -> None:
    """Adds ``by[g]`` to the values of each graph ``g``, in place."""
    for g in range(len(offsets) - 1):
        for v in range(offsets[g], offsets[g + 1]):
            values[v] += by[g]
