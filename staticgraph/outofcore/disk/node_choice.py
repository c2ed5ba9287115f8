"""Converts a selection of nodes to node numbers: integers, or a mask such as ``data.train_mask``.

A mask must be recognised first: converted to integers, it would select nodes 0 and 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.text.how_many import how_many


def chosen_nodes(nodes: ArrayLike, num_nodes: int, name: str) -> NDArray[np.int64]:
    """Returns ``[n]`` int64, in the caller's order; for a mask, the nodes where it is true.

    Args:
        nodes: ``[n]`` integers or ``[N]`` bool.
        num_nodes: N.
        name: the name of the nodes in error messages.

    Raises:
        BadGraph: if a number is outside ``[0, N)``, a mask has another length, or the values are
            not integers.
    """
    given = np.asarray(nodes)
    if given.dtype == bool:
        if given.shape != (num_nodes,):
            raise BadGraph(
                f"{name} is a mask of shape {given.shape}, the graph has "
                f"{how_many(num_nodes, 'node')}: give [{num_nodes}], or the nodes' numbers"
            )
        return np.flatnonzero(given)
    if not given.size:
        return np.empty(0, np.int64)
    if given.dtype.kind not in "iu" or given.ndim != 1:
        raise BadGraph(
            f"{name} has shape {given.shape} and dtype {given.dtype}: give [n] integers, the "
            "nodes' numbers, or a mask of all nodes"
        )
    low, high = int(given.min()), int(given.max())
    if low < 0 or high >= num_nodes:
        raise BadGraph(f"{name} names {[low, high]}; there are {how_many(num_nodes, 'node')}")
    return given.astype(np.int64)


def class_labels(labels: ArrayLike, num_nodes: int) -> NDArray[np.int64]:
    """Returns ``[N]`` int64: the class of each node, -1 for a node without one.

    Raises:
        ValueError: if the shape is another one, or a value is not a whole number of at least -1.
    """
    given = np.asarray(labels)
    if given.shape[:1] != (num_nodes,):
        raise ValueError(
            f"labels has {how_many(given.shape[0] if given.ndim else 1, 'entry')}, the graph "
            f"{how_many(num_nodes, 'node')}"
        )
    if given.shape == (num_nodes, 1):
        given = given[:, 0]
    if given.ndim != 1:
        raise ValueError(
            f"labels has shape {given.shape}: give a class for each node, [{num_nodes}]"
        )
    with np.errstate(invalid="ignore"):
        whole = given.astype(np.int64)
    wrong = (whole != given) | (whole < -1)
    if wrong.any():
        node = int(wrong.argmax())
        raise ValueError(
            f"labels has {given[node]} for node {node}: give classes, whole numbers from 0 on, and "
            "-1 for a node without one"
        )
    return whole
