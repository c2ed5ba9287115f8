"""Arrays from an untrusted caller -> graphs that a model can take, or a one-line error.

The checks: arrays have the right number of rows, edges and other indices stay within their graph,
the model has an embedding row for every category, and values are finite and representable in their
dtype. All graphs of a body are checked together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from staticgraph.jit import loop
from staticgraph.schema import EDGE_INDEX, Field
from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.indices import first_outside, graph_of_row
from staticgraph.text.how_many import how_many

Categories = Mapping[str, tuple[int, ...]]


class BadBody(ValueError):
    """A request body is invalid; the message has one line.

    Attributes:
        status: 400 if the body cannot be read, 408 if it takes too long, 413 if it is too large,
            415 if its type is unknown, 422 if it can be read but the model cannot take its graphs.
    """

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message.splitlines()[0][:500])
        self.status = status


def first_line(error: BaseException) -> str:
    """The first line of an error's message, possibly empty; a substitute if its ``__str__`` raises,
    so that it does not end a thread that has callers to answer."""
    try:
        return next(iter(str(error).splitlines()), "")
    except BaseException as reason:
        return f"it cannot say what it is: {type(reason).__name__} in its __str__"


def checked(
    arrays: Mapping[str, Array], fields: Sequence[Field], categories: Categories
) -> FlatGraphs:
    """Checks arrays and makes graphs of them; edges and fields are copied if they change dtype.

    Args:
        arrays: ``num_nodes`` and ``num_edges`` ``[n]`` int64 and not negative, ``edge_index`` and
            the fields, which may be flat.
        fields: the fields of the graphs, without a target.
        categories: integer field -> the number of categories of each of its columns.

    Raises:
        BadBody: an array has another shape or a value that the model cannot take; the message names
            the graph, the field and the value.
    """
    nodes, edges = arrays["num_nodes"], arrays["num_edges"]
    total = {"node": int(nodes.sum()), "edge": int(edges.sum()), "graph": len(nodes)}
    index = arrays[EDGE_INDEX]
    if index.size != 2 * total["edge"] or (index.ndim != 1 and index.shape != (2, total["edge"])):
        raise BadBody(f"edge_index has shape {list(index.shape)}, not [2, sum of num_edges]")
    index = cast(index, EDGE_INDEX, "int64").reshape(2, -1)
    columns = {}
    for item in fields:
        rows = total[item.level] * (item.rows if item.level == "graph" else 1)
        array = arrays[item.name]
        if array.size != rows * item.width or (
            array.ndim != 1 and array.shape != (rows, *item.shape)
        ):
            raise BadBody(
                f"{item.name!r} has not {how_many(rows, 'row')}, one per {item.level} "
                f"({item.describe()}), but shape {list(array.shape)}"
            )
        columns[item.name] = cast(array, item.name, item.dtype).reshape(rows, *item.shape)
    graphs = FlatGraphs(nodes, edges, index, columns)
    if (edge := _outside(index, nodes, edges)) >= 0:
        graph = int(np.searchsorted(np.cumsum(edges), edge, side="right"))
        raise BadBody(
            f"graph {graph}: edge_index leads to a node outside of 0 to {nodes[graph] - 1}"
        )
    for item in fields:
        if (sizes := categories.get(item.name)) is not None:
            _check_categories(item, graphs, sizes)
        if item.counts and (
            wrong := first_outside(item, columns[item.name], graphs.offsets, len(graphs))
        ):
            raise BadBody(wrong.words)
    return graphs


def cast(array: Array, name: str, dtype: str) -> Array:
    """An array of a dtype, in C order, without losing integer values; floats may be rounded.

    Raises:
        BadBody: a value does not fit the dtype or is not finite, or is not a number.
    """
    target = np.dtype(dtype)
    if target.kind != "f" and np.can_cast(array.dtype, target):  # without loss
        return np.ascontiguousarray(array, target)
    if array.dtype.kind not in "biuf":
        raise BadBody(f"{name!r} is no array of numbers with rows alike")
    with np.errstate(all="ignore"):
        values = np.ascontiguousarray(array, target)
        exact = array.dtype == target or target.kind == "f" or np.array_equal(values, array)
        # uint64 and int64 are compared as float64, which is not exact.
        exact &= not (array.dtype == np.uint64 and target.kind == "i") or not (values < 0).any()
    if not exact or (target.kind == "f" and not np.isfinite(values).all()):
        raise BadBody(f"{name!r} has a value that is no {dtype}, or not finite")
    return values


def _check_categories(item: Field, graphs: FlatGraphs, sizes: tuple[int, ...]) -> None:
    rows = graphs.columns[item.name].reshape(-1, len(sizes)).astype(np.int64, copy=False)
    if (place := _beyond(rows, np.array(sizes, np.int64))) < 0:
        return
    row, column = divmod(place, len(sizes))
    owner = graph_of_row(item, graphs.offsets, len(graphs))
    graph = int(owner[row])
    raise BadBody(
        f"graph {graph}: {item.name!r} has {rows[row, column]} in column {column} of row "
        f"{row - int(np.searchsorted(owner, graph))}; the model was trained with 0 to "
        f"{sizes[column] - 1} there"
    )


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
def _beyond(rows: IntArray, limits: IntArray) -> int:
    """The first value, in C order, that is not a category of its column; -1 if all are."""
    for row in range(len(rows)):
        for column in range(len(limits)):
            if rows[row, column] < 0 or rows[row, column] >= limits[column]:
                return row * len(limits) + column
    return -1
