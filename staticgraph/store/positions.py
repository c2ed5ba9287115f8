"""Selections of graphs or nodes: an index, a slice, indices or a mask, as in PyG's data sets."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Set
from typing import SupportsIndex, cast

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import whole_option


def one_graph(which: object, total: int) -> int | None:
    """Returns the graph that a single index selects; None if the selection may contain several.

    A negative index counts from the end.

    Raises:
        IndexError: if the index is out of range.
    """
    if getattr(which, "ndim", 0):
        return None
    try:
        graph = operator.index(which)  # type: ignore[arg-type]
    except TypeError:
        return None
    return graph_number(graph, total)


def graph_number(value: SupportsIndex, total: int) -> int:
    """Returns the number of one graph from 0 on; a negative one counts from the end.

    Raises:
        IndexError: if there is no such graph.
        ValueError: if it is not a whole number.
    """
    if type(value) is int and 0 <= value < total:  # as in reading all graphs, one by one
        return value
    graph = whole_option("graph", value)
    if not -total <= graph < total:
        raise IndexError(f"graph {graph} of {total}")
    return graph % total


def several_graphs(which: object, total: int) -> IntArray:
    """Returns the graphs that a slice, indices or a mask select.

    Args:
        which: a slice; ``[n]`` indices, where negative ones count from the end; an iterator or set
            of indices; or ``[total]`` bool.

    Returns:
        ``[n]`` int64, in the given order.

    Raises:
        IndexError: if an index is out of range, or a mask has the wrong length.
        ValueError: if an index is not a whole number.
    """
    if isinstance(which, slice):
        return np.arange(total, dtype=np.int64)[which]
    listed = list(which) if isinstance(which, Iterator | Set) else which
    positions = np.asarray(cast(ArrayLike, listed))
    if positions.dtype == bool:
        if positions.shape != (total,):
            raise IndexError(
                f"a mask of shape {list(positions.shape)} for {how_many(total, 'graph')}"
            )
        return np.flatnonzero(positions)
    graphs = whole_numbers(positions, "graphs").reshape(-1)
    beyond = np.flatnonzero((graphs < -total) | (graphs >= total))
    if len(beyond):
        raise IndexError(f"graph {graphs[beyond[0]]} of {total}")
    return graphs % max(total, 1)


def positions_in(
    values: ArrayLike,
    total: int,
    what: str,
    item: str = "graph",
    error: type[ValueError] = ValueError,
    outside: type[Exception] | None = None,
) -> IntArray:
    """Returns ``[n]`` int64: the numbers listed, in their order, or those where a mask is true.

    Args:
        values: ``[n]`` whole numbers, or ``[total]`` bool.
        total: how many items there are.
        what, item: what the values are, and what they number, for messages.
        error, outside: the exceptions to raise, ``outside`` for a number of no item.

    Raises:
        ValueError: (or ``error``) if they are neither whole numbers nor a mask of all items, or
            number none.
    """
    array = np.asarray(values)
    if array.dtype == bool and array.shape == (total,):
        return np.flatnonzero(array)
    if array.dtype == bool:
        raise error(
            f"{what} is a mask of shape {list(array.shape)} for {how_many(total, item)}: give "
            f"[{total}], or the {item}s' numbers"
        )
    numbers = whole_numbers(array, what, error)
    if numbers.ndim != 1:
        raise error(
            f"{what} has shape {array.shape}: give [n] integers, the {item}s' numbers, or a "
            f"mask of all {item}s"
        )
    wrong = (numbers < 0) | (numbers >= total)
    if wrong.any():
        entry = int(wrong.argmax())
        raise (outside or error)(
            f"entry {entry} of {what} names {item} {numbers[entry]}; there are {total}"
        )
    return numbers
