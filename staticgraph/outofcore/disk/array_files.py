"""Arrays as callers give them: files, features of nodes, numbers of nodes, classes.

A mask of nodes must be recognised before it is converted to integers, when it would
select nodes 0 and 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.files.numpy_file import UNREADABLE, why_unreadable
from staticgraph.text.how_many import how_many


def open_array(path: str | Path) -> NDArray[Any]:
    """Opens the array of an ``.npy`` file, memory-mapped.

    Raises:
        FileNotFoundError: if there is no such file.
        BadGraph: if the file is not an ``.npy`` file.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise BadGraph(
            f"{path} is not a .npy file of plain numbers: {why_unreadable(path)}"
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise BadGraph(f"{path} is an archive of arrays; give an .npy, which holds one")
    return array


def array_of(values: ArrayLike | str | Path, name: str) -> NDArray[Any]:
    """Returns an array, a host tensor or lists as an array; a path as a memory-mapped array.

    Raises:
        BadGraph: if they are not numbers of one shape.
    """
    if isinstance(values, str | Path):
        return open_array(values)
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise BadGraph(f"{name} is not an array of numbers ({error})") from error


# torch and NumPy share no real dtype wider than 8 bytes.
WIDEST_BYTES = 8


def feature_rows(features: ArrayLike | str | Path, num_nodes: int) -> NDArray[Any]:
    """Returns ``[N, F]`` features, memory-mapped if they are in a file.

    Args:
        features: an array, memory-mapped or not, a host tensor, lists, or the path of an ``.npy``.
        num_nodes: N.

    Raises:
        BadGraph: if the shape is another one, or the dtype is not one that torch and NumPy share.
    """
    rows = array_of(features, "features")
    if rows.ndim != 2 or len(rows) != num_nodes:
        raise BadGraph(f"features has shape {rows.shape}; give [{num_nodes}, F], a row per node")
    if rows.dtype.kind not in "biuf" or rows.dtype.itemsize > WIDEST_BYTES:
        raise BadGraph(
            f"features has dtype {rows.dtype}; give numbers, such as float32, float16 or int64"
        )
    return rows


def edge_outside(ends: NDArray[Any], num_nodes: int) -> tuple[int, str] | None:
    """Returns the first edge of ``[2, n]`` with an end that is no node, and what it joins.

    None if there is none.
    """
    if not ends.size or (ends.min() >= 0 and ends.max() < num_nodes):
        return None
    edge = int(((ends < 0) | (ends >= num_nodes)).any(axis=0).argmax())
    nodes = how_many(num_nodes, "node")
    return edge, f"joins {ends[0, edge]} -> {ends[1, edge]}, but there are {nodes}"


def node_numbers(nodes: ArrayLike, num_nodes: int, name: str) -> NDArray[np.int64]:
    """Returns ``[n]`` int64, in the caller's order; for a mask, the nodes where it is true.

    Args:
        nodes: ``[n]`` integers or ``[N]`` bool.
        num_nodes: N.
        name: the name of the nodes in error messages.

    Raises:
        BadGraph: if a number is outside ``[0, N)``, a mask has another length, or the values are
            not integers.
    """
    numbers = np.asarray(nodes)
    if numbers.dtype == bool:
        if numbers.shape != (num_nodes,):
            raise BadGraph(
                f"{name} is a mask of shape {numbers.shape}, the graph has "
                f"{how_many(num_nodes, 'node')}: give [{num_nodes}], or the nodes' numbers"
            )
        return np.flatnonzero(numbers)
    if not numbers.size:
        return np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise BadGraph(
            f"{name} has shape {numbers.shape} and dtype {numbers.dtype}: give [n] integers, the "
            "nodes' numbers, or a mask of all nodes"
        )
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= num_nodes:
        raise BadGraph(f"{name} names {[low, high]}; there are {how_many(num_nodes, 'node')}")
    return numbers.astype(np.int64)


def class_labels(labels: ArrayLike, num_nodes: int) -> NDArray[np.int64]:
    """Returns ``[N]`` int64: the class of each node, -1 for a node without one.

    Raises:
        ValueError: if the shape is another one, or a value is not a whole number of at least -1.
    """
    values = np.asarray(labels)
    if values.shape[:1] != (num_nodes,):
        raise ValueError(
            f"labels has {how_many(values.shape[0] if values.ndim else 1, 'entry')}, the graph "
            f"{how_many(num_nodes, 'node')}"
        )
    if values.shape == (num_nodes, 1):
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(
            f"labels has shape {values.shape}: give a class for each node, [{num_nodes}]"
        )
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    wrong = (whole != values) | (whole < -1)
    if wrong.any():
        node = int(wrong.argmax())
        raise ValueError(
            f"labels has {values[node]} for node {node}: give classes, whole numbers from 0 on, "
            "and -1 for a node without one"
        )
    return whole
