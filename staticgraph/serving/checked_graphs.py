"""Arrays from an untrusted caller -> graphs that a model can take, or a one-line error.

Graphs stay in a few flat arrays, without a Python object per graph: one ``Data`` per graph, its
tensors and a store of them cost a third of a millisecond per request, more than the model takes for
a molecule in a full batch.

The checks: arrays have the right number of rows, edges and other indices stay within their graph,
the model has an embedding row for every category, and values are finite and representable in their
dtype. All graphs of a body are checked together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from staticgraph.schema import EDGE_INDEX, Field, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array, graph_at, offsets_of_counts
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.indices import NONE, Offsets, first_outside, graph_of_row, sorted_edges
from staticgraph.text.how_many import how_many

TARGET = "y"
# Homogeneous graphs: ``num_nodes`` and ``num_edges`` ``[n]``, ``edge_index`` ``[2, sum e]``
# numbered within each graph, in any order; fields ``[rows of the level, *shape]``; no target.
Arrays = dict[str, Array]
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


def fields_of(schema: Schema) -> list[Field]:
    """The fields that a request's graph must have in addition to its edges: all but its target."""
    return [item for item in schema if item.name != TARGET]


def joined(parts: Sequence[Arrays]) -> Arrays:
    """The graphs of all parts in one set of arrays, in order."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: np.concatenate([part[name] for part in parts], axis=int(name == EDGE_INDEX))
        for name in parts[0]
    }


def store_of(graphs: Arrays, schema: Schema) -> GraphStore:
    """A store of checked graphs with the fields of a schema, sorted unless the schema keeps their
    order; targets are zero. Its arrays are not narrowed, since that takes longer than they live."""
    offsets = offsets_of_counts(graphs["num_nodes"], graphs["num_edges"], {}, "a request")
    src, dst = graphs[EDGE_INDEX]
    if TARGET in schema:
        y = schema[TARGET]
        rows = offsets[y.level][-1] * y.rows
        graphs = {**graphs, TARGET: np.zeros((rows, *y.shape), y.dtype)}
    columns = {item.name: graphs[item.name] for item in schema}
    edges: dict[str, Any] = dict.fromkeys(("row_ptr", "transpose", "edge_origin"), NONE)
    edges |= {"edge_src": src, "edge_dst": dst, "columns": columns}
    if schema.has_pointers:
        edges = sorted_edges(src, dst, schema, columns, offsets, "a request", narrow=np.asarray)
    nodes = offsets["node"]
    return GraphStore(schema=schema, node_offsets=nodes, edge_offsets=offsets["edge"], **edges)


def checked(arrays: Arrays, fields: Sequence[Field], categories: Categories) -> Arrays:
    """Checks graphs, whose numbers of nodes and edges are int64 and not negative; arrays are copied
    if they change dtype. ``categories`` has the number of categories of each column of a field.

    Raises:
        BadBody: an array has another shape or a value that the model cannot take; the message names
            the graph, the field and the value.
    """
    nodes, edges, index = arrays["num_nodes"], arrays["num_edges"], arrays[EDGE_INDEX]
    offsets = offsets_of_counts(nodes, edges, {}, "a request")
    if index.shape != (2, offsets["edge"][-1]):
        raise BadBody(f"edge_index has shape {list(index.shape)}, not [2, sum of num_edges]")
    index = _cast(index, EDGE_INDEX, "int64", offsets["edge"])
    graphs = {"num_nodes": nodes, "num_edges": edges, EDGE_INDEX: index}
    for item in fields:
        bounds = offsets[item.level] * item.rows
        array, shape = arrays[item.name], (int(bounds[-1]), *item.shape)
        if array.shape != shape:
            raise BadBody(
                f"{item.name!r} has not {how_many(shape[0], 'row')}, one per {item.level} "
                f"({item.describe()}), but shape {list(array.shape)}"
            )
        graphs[item.name] = _cast(array, item.name, item.dtype, bounds)
    beyond = (index < 0) | (index >= np.repeat(nodes, edges))
    if beyond.any():
        graph = _graph_of(beyond, offsets["edge"])
        raise BadBody(
            f"graph {graph}: edge_index leads to a node outside of 0 to {nodes[graph] - 1}"
        )
    for item in fields:
        if item.name in categories:
            check_categories(item, graphs[item.name], offsets, categories[item.name])
        if item.counts and (wrong := first_outside(item, graphs[item.name], offsets)):
            raise BadBody(wrong.words)
    return graphs


def _graph_of(wrong: Array, offsets: IntArray) -> int:
    """The graph of the first wrong row, which is the last dimension; ``offsets`` are ``[n + 1]``,
    where the rows of each graph begin."""
    return graph_at(offsets, np.nonzero(wrong)[-1].min())


def _cast(array: Array, name: str, dtype: str, offsets: IntArray) -> Array:
    """An array ``[rows of all graphs, ...]`` of a dtype, in C order; floats may be rounded.

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
        graph = _graph_of(wrong if name == EDGE_INDEX else wrong.T, offsets)
        raise BadBody(f"graph {graph}: {name!r} has a value that is no {dtype}, or not finite")
    return values


def check_categories(item: Field, values: Array, offsets: Offsets, sizes: tuple[int, ...]) -> None:
    """Checks that the values of an integer field, ``[rows, *shape]``, are among the categories of
    their column, of which there are ``sizes``; ``offsets`` are ``[n + 1]`` of the field's level.

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
