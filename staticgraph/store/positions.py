"""Which graphs are meant: a number, a slice, numbers, or a mask, as PyG's data sets take them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Set
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.text.how_many import how_many


def one_graph(which: object, total: int) -> int | None:
    """The graph that a single number means, counted from the end where it is negative; None for
    what may mean several.

    Raises:
        IndexError: there is no graph of that number.
    """
    if getattr(which, "ndim", 0):
        return None
    try:
        graph = operator.index(which)  # type: ignore[arg-type]
    except TypeError:
        return None
    if not -total <= graph < total:
        raise IndexError(f"graph {graph} of {total}")
    return graph % total


def several_graphs(which: object, total: int) -> IntArray:
    """The graphs that a slice, numbers or a mask mean.

    Args:
        which: ``[n]`` numbers, negative ones counted from the end, or ``[total]`` bool; an iterator
            or a set of numbers, too.
        total: how many graphs there are.

    Returns:
        ``[n]`` int64, in their order.

    Raises:
        IndexError: there is no graph of a number, or a mask is for another number of graphs.
        ValueError: a number is not whole.
    """
    if isinstance(which, slice):
        return np.arange(total, dtype=np.int64)[which]
    listed = list(which) if isinstance(which, Iterator | Set) else which
    given = np.asarray(cast(ArrayLike, listed))
    if given.dtype == bool:
        if given.shape != (total,):
            raise IndexError(f"a mask of shape {list(given.shape)} for {how_many(total, 'graph')}")
        return np.flatnonzero(given)
    graphs = whole_numbers(given, "graphs").reshape(-1)
    beyond = np.flatnonzero((graphs < -total) | (graphs >= total))
    if len(beyond):
        raise IndexError(f"graph {graphs[beyond[0]]} of {total}")
    return graphs % max(total, 1)
