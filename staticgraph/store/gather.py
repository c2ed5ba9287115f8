"""Some graphs of several stores -> a small store of them, for the batch that they go into.

The loops that fill a batch read flat columns, and the columns of shards are as many as there are
shards. So the graphs of one batch are first copied together, array by array, each to the place that
its graph has in the batch. A batch is a few hundred graphs, so this is one more copy of what is
copied anyway. One call an array copies from all shards (:mod:`staticgraph.store.addresses`); an
array that shards keep in different dtypes takes a call a shard.
"""

from __future__ import annotations

from collections.abc import Mapping

import numba
import numpy as np

from staticgraph.schema import Schema
from staticgraph.sizes.whole_numbers import IntArray, pointer_dtype
from staticgraph.store.addresses import LevelRows, TakenGraphs
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns

Dtypes = Mapping[str, np.dtype]


def gathered(schema: Schema, dtypes: Dtypes, taken: TakenGraphs, pointers: bool) -> GraphColumns:
    """One store of these graphs, in their order.

    Args:
        schema: of all stores.
        dtypes: of each array, one that holds every store's.
        taken: the graphs.
        pointers: fill ``row_ptr`` and ``transpose``, too.
    """
    levels = ["node", "edge", *(axis.name for axis in schema.axes)]
    rows = {level: taken.rows(level) for level in levels}
    plain = not (schema.hetero or schema.two_sided)
    none = np.empty(0, np.int64)
    arrays: dict[str, Array] = dict.fromkeys(("edge_src", "edge_dst", "transpose"), none)
    for name in arrays if plain else ():
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
        row_ptr=_row_pointers(taken, rows["node"], rows["edge"]) if plain and pointers else none,
        transpose=arrays["transpose"],
        edge_origin=none,
        columns=columns,
        offsets={axis.name: rows[axis.name].offsets for axis in schema.axes},
    )


def _copy(taken: TakenGraphs, name: str, rows: LevelRows, target: Array) -> None:
    """An array's rows of all graphs, widened where their stores keep it in several dtypes."""
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
    """``[nodes + 1]`` where each node's incoming edges begin among all edges."""
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


@numba.njit(cache=True, nogil=True)
def _shift(offsets: IntArray, by: IntArray, values: Array) -> None:
    """Adds a number to each graph's values."""
    for g in range(len(offsets) - 1):
        for v in range(offsets[g], offsets[g + 1]):
            values[v] += by[g]
