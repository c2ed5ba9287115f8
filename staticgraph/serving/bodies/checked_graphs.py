"""Arrays from an untrusted caller -> graphs that a model can take, or a one-line error.

The checks: arrays have the right number of rows, edges and other indices stay within their graph,
the model has an embedding row for every category, and values are finite and representable in their
dtype. All graphs of a body are checked together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from staticgraph.schema import EDGE_INDEX, Field
from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.indices import Offsets, first_outside, graph_of_row
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
        arrays: ``num_nodes`` and ``num_edges`` ``[n]`` int64 and not negative, ``edge_index``
            ``[2, sum e]``, and the fields ``[rows, *shape]``.
        fields: the fields of the graphs, without a target.
        categories: integer field -> the number of categories of each of its columns.

    Raises:
        BadBody: an array has another shape or a value that the model cannot take; the message names
            the graph, the field and the value.
    """
    nodes, edges, index = arrays["num_nodes"], arrays["num_edges"], arrays[EDGE_INDEX]
    counts = {"node": nodes, "edge": edges}
    if index.shape != (2, edges.sum()):
        raise BadBody(f"edge_index has shape {list(index.shape)}, not [2, sum of num_edges]")
    columns = {}
    for item in fields:
        rows = counts.get(item.level, np.full(len(nodes), item.rows))
        array, shape = arrays[item.name], (int(rows.sum()), *item.shape)
        if array.shape != shape:
            raise BadBody(
                f"{item.name!r} has not {how_many(shape[0], 'row')}, one per {item.level} "
                f"({item.describe()}), but shape {list(array.shape)}"
            )
        columns[item.name] = _cast(array, item.name, item.dtype, rows)
    graphs = FlatGraphs(nodes, edges, _cast(index, EDGE_INDEX, "int64", edges), columns)
    beyond = (graphs.edge_index < 0) | (graphs.edge_index >= np.repeat(nodes, edges))
    if beyond.any():
        graph = _graph_of(beyond, edges)
        raise BadBody(
            f"graph {graph}: edge_index leads to a node outside of 0 to {nodes[graph] - 1}"
        )
    for item in fields:
        if item.name in categories:
            check_categories(item, columns[item.name], graphs.offsets, categories[item.name])
        if item.counts and (wrong := first_outside(item, columns[item.name], graphs.offsets)):
            raise BadBody(wrong.words)
    return graphs


def _graph_of(wrong: Array, rows: IntArray) -> int:
    """The graph of the first wrong row, which is the last dimension; ``rows`` are of each graph."""
    row = np.nonzero(wrong)[-1].min()
    return int(np.searchsorted(np.cumsum(rows), row, side="right"))


def _cast(array: Array, name: str, dtype: str, rows: IntArray) -> Array:
    """An array of a dtype, in C order, without losing integer values; floats may be rounded.

    Args:
        array: ``[sum of rows, ...]``, or ``[2, sum of rows]`` for the edges.
        name, dtype: the array's name, and the dtype.
        rows: the number of rows of each graph.

    Raises:
        BadBody: a value does not fit the dtype or is not finite, or is not a number.
    """
    target = np.dtype(dtype)
    if target.kind != "f" and np.can_cast(array.dtype, target):  # without loss
        return np.ascontiguousarray(array, target)
    if array.dtype.kind not in "biuf":
        raise BadBody(f"{name!r} is no array of numbers")
    with np.errstate(all="ignore"):
        values = np.ascontiguousarray(array, target)
        wrong = ~np.isfinite(values) if target.kind == "f" else values != array
        if array.dtype == np.uint64 and target.kind == "i":  # compared as float64: not exact
            wrong |= values < 0
    if wrong.any():
        graph = _graph_of(wrong if name == EDGE_INDEX else wrong.T, rows)
        raise BadBody(f"graph {graph}: {name!r} has a value that is no {dtype}, or not finite")
    return values


def check_categories(item: Field, values: Array, offsets: Offsets, sizes: tuple[int, ...]) -> None:
    """Checks that a model has a row for each category.

    Args:
        item: an integer field.
        values: ``[rows, *shape]``.
        offsets: the field's level -> ``[n + 1]``, where each graph's rows begin.
        sizes: the number of categories of each column.

    Raises:
        BadBody: a value is none of them; the message names it, its graph and its column.
    """
    rows = values.reshape(-1, len(sizes)).astype(np.int64, copy=False)
    wrong = (rows < 0) | (rows >= sizes)
    if not wrong.any():
        return
    row, column = divmod(int(wrong.argmax()), len(sizes))
    owner = graph_of_row(item, offsets)
    graph = int(owner[row])
    raise BadBody(
        f"graph {graph}: {item.name!r} has {rows[row, column]} in column {column} of row "
        f"{row - int(np.searchsorted(owner, graph))}; the model was trained with 0 to "
        f"{sizes[column] - 1} there"
    )
