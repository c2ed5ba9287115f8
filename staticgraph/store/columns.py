"""Checks flat arrays over all graphs, sorts edges by destination, and narrows dtypes.

Everything here works on whole columns, never graph by graph in Python: 41,127 molecules take a
fraction of a second. The checks run once, when a store is built, so that the loops that fill
batches later need none. Errors name the graph, which is found from the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.jit import loop
from staticgraph.schema import Axis, Field, Level, Schema
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.store.positions import positions_in
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option


class NoSplit(KeyError):
    """A split that a store does not have; unlike KeyError, shown without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


class Splits(dict[str, IntArray]):
    """Graph indices by the name of the split."""

    def __missing__(self, name: str) -> NoReturn:
        """Raises an error that lists the existing splits.

        Raises:
            NoSplit: always.
        """
        choices = f"its splits are {', '.join(self)}" if self else "it has no splits"
        raise NoSplit(
            f"the store has no split {name!r}, {choices}: name some, store = store.with_splits("
            "train=range(900), val=range(900, 1000)), or give positions of graphs as indices="
        )


Array = NDArray[Any]


class IndexRule(NamedTuple):
    """How a field is concatenated: its ``__cat_dim__``, and the levels that its values index."""

    cat_dim: int | None = 0
    counts: tuple[str, ...] = ()


def narrowest(array: Array, dtypes: Iterable[type[np.integer]]) -> type[np.integer] | None:
    """Returns the first of these dtypes that holds all whole numbers of an array; else None."""
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    fits = (each for each in dtypes if np.iinfo(each).min <= low and high <= np.iinfo(each).max)
    return next(fits, None)


def compact(column: Array) -> Array:
    """Returns the same values in the smallest dtype that holds them exactly.

    Integers become the narrowest of uint8, int16, uint16, int32 and int64 that holds them. Floats
    become uint8 if every value is a whole number from 0 to 255 (one-hot features) and none is -0.0,
    which a byte cannot tell from 0; otherwise they stay as they are. Booleans stay. The result is
    never the caller's own array, and always in C order: a column in another order would be copied
    whole for every batch.
    """
    if column.dtype == np.bool_ or not column.size:
        return column.copy()
    if column.dtype.kind in "iu":
        dtype = narrowest(column, (np.uint8, np.int16, np.uint16, np.int32, np.int64))
        return column.astype(dtype or column.dtype, order="C")
    with np.errstate(invalid="ignore"):
        narrow = column.astype(np.uint8, order="C")
    exact = np.array_equal(narrow, column) and not np.signbit(column).any()
    return narrow if exact else column.copy()


def names_of_fields(names: Iterable[str]) -> tuple[str, ...]:
    """Returns field names as a tuple; a string is one name, not a sequence of letters."""
    return (names,) if isinstance(names, str) else tuple(names)


def native(values: Array, name: str) -> Array:
    """Returns the same numbers in native byte order, with strides that a tensor can have.

    Raises:
        BadGraph: if the dtype is wider than 64 bits per real number (longdouble), which no tensor
            holds.
    """
    if values.dtype.kind in "fc" and values.dtype.itemsize > (
        8 if values.dtype.kind == "f" else 16
    ):
        raise BadGraph(
            f"field {name!r} has dtype {values.dtype}, which no tensor holds; give it as float64"
        )
    if not values.dtype.isnative:
        return values.astype(values.dtype.newbyteorder("="))
    return values.copy() if min(values.strides, default=0) < 0 else values


def offsets_of_counts(
    num_nodes: ArrayLike, num_edges: ArrayLike, axes: Mapping[str, ArrayLike], name: str
) -> dict[str, IntArray]:
    """Returns ``[n + 1]`` for every level: where each graph's rows begin, from their counts.

    Args:
        num_nodes, num_edges: ``[n]``.
        axes: axis -> ``[n]`` rows.
        name: the data set's name, for messages.

    Raises:
        BadGraph: if there is no graph, or a count is missing or negative.
    """
    described = {
        "node": (f"num_nodes of {name}", num_nodes),
        "edge": (f"num_edges of {name}", num_edges),
        **{axis: (f"{name}: axis {axis!r}", rows) for axis, rows in axes.items()},
    }
    counts = {
        level: whole_numbers(rows, what, BadGraph) for level, (what, rows) in described.items()
    }
    graphs = counts["node"].size
    if not graphs:
        raise BadGraph(f"{name} holds no graph; a store needs at least one")
    for level, rows in counts.items():
        if rows.shape != (graphs,):
            raise BadGraph(
                f"{name}: node counts of {how_many(graphs, 'graph')}, {level} counts of {rows.size}"
            )
        if (rows < 0).any():
            graph = int((rows < 0).argmax())
            raise BadGraph(
                f"graph {graph} of {name} has {rows[graph]} rows of {level}; at least 0 are needed"
            )
    offsets = {level: np.concatenate([[0], np.cumsum(rows)]) for level, rows in counts.items()}
    return {**offsets, "graph": np.arange(graphs + 1)}


def graph_at(offsets: IntArray, row: int) -> int:
    """Returns the graph that a row of a column belongs to."""
    return int(np.searchsorted(offsets, row, side="right")) - 1


def checked_columns(
    fields: Mapping[str, tuple[Level, Array]],
    rows: Mapping[str, int],
    offsets: Mapping[str, IntArray],
    axes: tuple[Axis, ...] = (),
    rules: Mapping[str, IndexRule] | None = None,
) -> tuple[Schema, dict[str, Array]]:
    """Returns the schema of the fields, and their columns as arrays of checked length.

    Raises:
        BadGraph: if a field is not numeric, its level is unknown, or its number of rows does not
            match its level, or is one that no store can be loaded with.
    """
    lengths = {level: each[-1] for level, each in offsets.items()}
    described, columns = [], {}
    for name, (level, values) in fields.items():
        column = native(np.asarray(values), name)
        if column.dtype.kind not in "biuf":
            raise BadGraph(f"field {name!r} has dtype {column.dtype}; use numbers or booleans")
        if level not in lengths:
            raise BadGraph(
                f"field {name!r} is of level {level!r}; there are {', '.join(map(repr, lengths))}"
            )
        count = whole_option(f"rows of {name!r}", rows.get(name, 1), 1, BadGraph)
        if count > 1 and level != "graph":
            raise BadGraph(
                f"field {name!r} has {count} rows per {level}: only fields of graphs have several; "
                "give it another dimension"
            )
        expected = lengths[level] * count
        if column.ndim == 0 or len(column) != expected:
            raise BadGraph(
                f"field {name!r} has shape {column.shape}; a {level}-level field of this data set "
                f"has {how_many(expected, 'row')}"
            )
        nan = column.dtype.kind == "f" and bool(np.isnan(column).any())
        rule = (rules or {}).get(name, IndexRule())
        shape, dtype = column.shape[1:], column.dtype.name
        described.append(Field(name, level, shape, dtype, count, nan, rule.cat_dim, rule.counts))
        columns[name] = column
    return Schema(tuple(described), axes), columns


def require_finite(
    schema: Schema,
    columns: Mapping[str, Array],
    offsets: Mapping[str, IntArray],
    which: bool | tuple[str, ...],
) -> None:
    """Rejects NaN and infinity in every floating field except ``y`` (True), or in named ones.

    Raises:
        BadGraph: if a value is not finite; the message names the graph.
    """
    if which is False:
        return
    names = (
        names_of_fields(which) if which is not True else [i.name for i in schema if i.name != "y"]
    )
    for item in (schema[name] for name in names):
        column = columns[item.name]
        if column.dtype.kind != "f" or np.isfinite(column).all():
            continue
        row = int((~np.isfinite(column).reshape(len(column), -1).all(axis=1)).argmax())
        graph = graph_at(offsets[item.level], row // item.rows)
        inside = row - int(offsets[item.level][graph]) * item.rows
        raise BadGraph(
            f"graph {graph} has {item.name}[{inside}] = {column[row].tolist()}, which is not "
            f"finite: fix or drop the graph, or leave {item.name!r} out of check_finite"
        )


def checked_splits(splits: Mapping[str, ArrayLike], n: int, name: str) -> dict[str, IntArray]:
    """Returns the splits as int64 graph indices.

    Raises:
        BadGraph: if a split is neither a list of existing graphs nor a mask of all graphs.
    """
    return {
        key: positions_in(ids, n, f"split {key!r} of {name}", error=BadGraph)
        for key, ids in splits.items()
    }


@loop
def _counting_sort(keys: IntArray, ptr: IntArray, order: IntArray) -> None:
    for e in range(len(keys)):
        ptr[keys[e] + 1] += 1
    for key in range(len(ptr) - 1):
        ptr[key + 1] += ptr[key]
    at = ptr[:-1].copy()
    for e in range(len(keys)):
        order[at[keys[e]]] = e
        at[keys[e]] += 1


def sort_by_key(keys: Array, num_keys: int) -> tuple[IntArray, IntArray]:
    """Returns the permutation that sorts ``[n]`` keys from 0 and below ``num_keys`` stably, in
    linear time, and ``[num_keys + 1]`` where each begins."""
    order, ptr = np.empty(len(keys), np.int64), np.zeros(num_keys + 1, np.int64)
    _counting_sort(np.ascontiguousarray(keys, np.int64), ptr, order)
    return order, ptr


def sort_by_node(
    ends: Array, node_offsets: IntArray, edge_offsets: IntArray
) -> tuple[IntArray, IntArray]:
    """Returns the permutation that sorts the edges of all graphs by an end, and ``[sum n + 1]``
    where the edges of each node begin."""
    first = np.repeat(np.asarray(node_offsets[:-1], np.int64), np.diff(edge_offsets))
    return sort_by_key(ends + first, int(node_offsets[-1]))


def sort_by_destination(
    dst: Array, node_offsets: IntArray, edge_offsets: IntArray
) -> IntArray | None:
    """Returns the permutation that sorts edges by destination; None if already sorted."""
    order, _ = sort_by_node(dst, node_offsets, edge_offsets)
    return order if (np.diff(order) < 0).any() else None


def row_pointers(
    src: Array, dst: Array, node_offsets: IntArray, edge_offsets: IntArray
) -> tuple[IntArray, IntArray]:
    """Returns row pointers by destination, and each graph's permutation of edges by source."""
    _, row_ptr = sort_by_node(dst, node_offsets, edge_offsets)
    order, _ = sort_by_node(src, node_offsets, edge_offsets)
    return row_ptr, local_positions(order, edge_offsets)


def local_positions(order: IntArray, edge_offsets: IntArray) -> IntArray:
    """Converts positions among all edges to positions within each graph."""
    return order - np.repeat(edge_offsets[:-1], np.diff(edge_offsets))
