"""Arrays as callers give them: edges, features of nodes, classes; in memory or in files.

Edges are read in checked chunks, front to back, never all at once, so they may come from a function
that generates them on the fly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch_geometric.data.data import BaseData

from staticgraph.errors import BadGraph
from staticgraph.files.numpy_file import UNREADABLE, why_unreadable
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

EdgeFunction = Callable[[], Iterable[NDArray[Any]]]
Edges = ArrayLike | str | Path | EdgeFunction
# Relations are written in the dtype of node numbers, which is int32 below 2**31 nodes.
MOST_RELATIONS = 2**31 - 1
# torch and NumPy share no real dtype wider than 8 bytes.
WIDEST_BYTES = 8


def array_of(values: ArrayLike | str | Path, name: str) -> NDArray[Any]:
    """Returns an array, a host tensor or lists as an array; that of an ``.npy`` file memory-mapped.

    Raises:
        FileNotFoundError: if there is no such file.
        BadGraph: if they are not numbers of one shape, or the file is not an ``.npy`` file.
    """
    if not isinstance(values, str | Path):
        try:
            return np.asarray(values)
        except (TypeError, ValueError) as error:
            raise BadGraph(f"{name} is not an array of numbers ({error})") from error
    try:
        array = np.load(values, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise BadGraph(
            f"{values} is not a .npy file of plain numbers: {why_unreadable(values)}"
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise BadGraph(f"{values} is an archive of arrays; give an .npy, which holds one")
    return array


def feature_rows(features: ArrayLike | str | Path, num_nodes: int) -> NDArray[Any]:
    """Returns ``[N, F]`` features (see :func:`array_of`), memory-mapped if they are in a file.

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


def check_form(
    edges: NDArray[Any], rows: Sequence[int], name: str, error: type[ValueError] = BadGraph
) -> None:
    """Checks that edges are whole numbers, one edge per column, with one of these numbers of rows.

    Tables of edges have one row per edge in many libraries: the message says how to turn them.

    Raises:
        BadGraph: (or ``error``) if they are not.
    """
    if edges.ndim == 2 and len(edges) in rows and edges.dtype.kind in "iu":
        return
    forms = " or ".join(f"[{count}, E]" for count in rows)
    turned = edges.ndim == 2 and edges.shape[1] in rows
    raise error(
        f"{name} has shape {edges.shape} and dtype {edges.dtype}; give integers {forms}: source, "
        f"destination{', relation' if 3 in rows else ''}{f', such as {name}.T' if turned else ''}"
    )


def check_edges(
    edges: IntArray,
    num_nodes: int,
    where: str = "",
    first: int = 0,
    error: type[ValueError] = BadGraph,
) -> None:
    """Checks that the ends of ``[2 or 3, n]`` edges are nodes, and relations are not negative.

    Raises:
        BadGraph: (or ``error``) if one is not; the message begins with ``where`` and names the
            edge, counted from ``first``.
    """
    if not edges.size:
        return
    ends = edges[:2]
    if ends.min() < 0 or ends.max() >= num_nodes:
        edge = int(((ends < 0) | (ends >= num_nodes)).any(axis=0).argmax())
        raise error(
            f"{where}edge {first + edge} joins {ends[0, edge]} -> {ends[1, edge]}, but there are "
            f"{how_many(num_nodes, 'node')}: fix the edge or raise num_nodes"
        )
    if len(edges) == 3 and edges[2].min() < 0:
        edge = int(edges[2].argmin())
        raise error(f"{where}edge {first + edge} has relation {edges[2, edge]}; count from 0")


def edge_chunks(edges: Edges, num_nodes: int, chunk: int) -> Iterator[IntArray]:
    """Yields ``[2 or 3, n]`` int64, n up to ``chunk``: source, destination, relation, in order.

    The arguments are those of :func:`staticgraph.outofcore.partition`.

    Raises:
        BadGraph: if an endpoint is outside ``[0, N)``, a relation is negative or at least
            ``2**31 - 1``, or an array has another form.
    """
    if isinstance(edges, BaseData):  # is callable, like a function
        raise BadGraph(
            f"edges is a {type(edges).__name__}; give its edge_index, of several types of "
            "edges all in one array with the number of the type as the third row"
        )
    start = 0
    for values in cast(EdgeFunction, edges)() if callable(edges) else [edges]:
        piece = array_of(values, "edges")
        check_form(piece, (2, 3), f"edges from number {start} on" if start else "edges")
        # Also once without edges: the number of rows says whether there are relations.
        for low in range(0, max(1, piece.shape[1]), chunk):
            rows = np.ascontiguousarray(piece[:, low : low + chunk], dtype=np.int64)
            check_edges(rows, num_nodes, first=start + low)
            if len(rows) == 3 and rows[2].max(initial=0) >= MOST_RELATIONS:
                edge = int(rows[2].argmax())
                raise BadGraph(
                    f"edge {start + low + edge} has relation {rows[2, edge]}, and there is "
                    f"room for {MOST_RELATIONS:,}: number relations from 0 on, such as by "
                    "np.unique(relations, return_inverse=True)"
                )
            yield rows
        start += piece.shape[1]


def class_labels(labels: ArrayLike, num_nodes: int) -> IntArray:
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
    if values.size != num_nodes:
        raise ValueError(
            f"labels has shape {values.shape}: give a class for each node, [{num_nodes}]"
        )
    values = values.reshape(-1)
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
