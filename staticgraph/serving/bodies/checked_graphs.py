"""Arrays from an untrusted caller -> graphs that a model can take, or a one-line error.

The checks: arrays have the right number of rows, edges and other indices stay within their graph,
the model has an embedding row for every category, and values are finite and representable in their
dtype. All graphs of a body are checked together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from staticgraph.jit import loop
from staticgraph.schema import EDGE_INDEX, Field
from staticgraph.serving.bodies.bad_body import BadBody
from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.indices import first_outside
from staticgraph.text.how_many import how_many

Categories = Mapping[str, tuple[int, ...]]


def checked(
    arrays: Mapping[str, Array], fields: Sequence[Field], categories: Categories
) -> FlatGraphs:
    """Checks arrays and makes graphs of them; edges and fields are copied.

    Args:
        arrays: ``num_nodes`` and ``num_edges`` ``[n]`` int64 and not negative, ``edge_index`` and
            the fields, which may be flat.
        fields: the fields of the graphs, without a target.
        categories: integer field -> the number of categories of each of its columns.

    Raises:
        BadBody: the message names the graph, the field and the value.
    """
    nodes, edges = arrays["num_nodes"], arrays["num_edges"]
    total = {"node": int(nodes.sum()), "edge": int(edges.sum()), "graph": len(nodes)}
    index = arrays[EDGE_INDEX]
    if index.size != 2 * total["edge"] or (index.ndim != 1 and index.shape != (2, total["edge"])):
        raise BadBody(f"edge_index has shape {list(index.shape)}, not [2, sum of num_edges]")
    index = cast(index, EDGE_INDEX, "int64").reshape(2, -1)
    _check_ends(index, nodes, edges)
    columns = {}
    for item in fields:
        rows = total[item.level] * (item.rows if item.level == "graph" else 1)
        found = arrays[item.name]
        if found.size != rows * item.width or (
            found.ndim != 1 and found.shape != (rows, *item.shape)
        ):
            raise BadBody(
                f"{item.name!r} has not {how_many(rows, 'row')}, one per {item.level} "
                f"({item.describe()}), but shape {list(found.shape)}"
            )
        made = cast(found, item.name, item.dtype).reshape(rows, *item.shape)
        if (sizes := categories.get(item.name)) is not None:
            _check_categories(item, made.reshape(rows, len(sizes)), sizes, nodes, edges)
        columns[item.name] = made
    found = FlatGraphs(nodes, edges, index, columns)
    for item in fields:
        if item.counts and (
            wrong := first_outside(item, columns[item.name], found.offsets, len(found))
        ):
            raise BadBody(wrong.words)
    return found


def cast(found: Array, name: str, dtype: str) -> Array:
    """Copies an array to a dtype without losing integer values; floats may be rounded.

    Raises:
        BadBody: a value does not fit the dtype or is not finite, or is not a number.
    """
    wanted = np.dtype(dtype)
    if found.dtype == wanted and wanted.kind in "iu":
        return found.copy()  # in C order
    if wanted.kind != "f" and np.can_cast(found.dtype, wanted):  # without loss
        return np.array(found, wanted, order="C")
    if found.dtype.kind not in "biuf":
        raise BadBody(f"{name!r} is no array of numbers with rows alike")
    with np.errstate(all="ignore"):
        made = np.array(found, wanted, order="C")
        exact = found.dtype == wanted or wanted.kind == "f" or np.array_equal(made, found)
        # uint64 and int64 are compared as float64, which is not exact.
        exact &= not (found.dtype == np.uint64 and wanted.kind == "i") or not (made < 0).any()
    if not exact or (wanted.kind == "f" and not np.isfinite(made).all()):
        raise BadBody(f"{name!r} has a value that is no {dtype}, or not finite")
    return made


def _check_ends(index: IntArray, nodes: IntArray, edges: IntArray) -> None:
    if not index.size:
        return
    if (edge := _outside(index, nodes, edges)) >= 0:
        graph = _graph_of(edge, edges)
        raise BadBody(
            f"graph {graph}: edge_index leads to a node outside of 0 to {nodes[graph] - 1}"
        )


def _check_categories(
    item: Field, found: Array, sizes: tuple[int, ...], nodes: IntArray, edges: IntArray
) -> None:
    if (place := _beyond(found.astype(np.int64, copy=False), _limits(sizes))) < 0:
        return
    row, column = divmod(place, len(sizes))
    counts = {"node": nodes, "edge": edges, "graph": np.full(len(nodes), item.rows)}[item.level]
    graph = _graph_of(row, counts)
    raise BadBody(
        f"graph {graph}: {item.name!r} has {found[row, column]} in column {column} of row "
        f"{row - int(counts[:graph].sum())}; the model was trained with 0 to {sizes[column] - 1} "
        "there"
    )


@lru_cache
def _limits(sizes: tuple[int, ...]) -> IntArray:
    return np.array(sizes, np.int64)


@loop
def _outside(index: IntArray, nodes: IntArray, edges: IntArray) -> int:
    """The first edge with an endpoint outside its graph; -1 if there is none."""
    edge = 0
    for graph in range(len(nodes)):
        limit = nodes[graph]
        for _ in range(edges[graph]):
            src, dst = index[0, edge], index[1, edge]
            if src < 0 or src >= limit or dst < 0 or dst >= limit:
                return edge
            edge += 1
    return -1


@loop
def _beyond(found: IntArray, limits: IntArray) -> int:
    """The first value, in C order, that is not a category of its column; -1 if all are."""
    rows, columns = found.shape
    for row in range(rows):
        for column in range(columns):
            if found[row, column] < 0 or found[row, column] >= limits[column]:
                return row * columns + column
    return -1


def _graph_of(row: int, counts: IntArray) -> int:
    """The graph that a row belongs to."""
    return int(np.searchsorted(np.cumsum(counts), row, side="right"))
