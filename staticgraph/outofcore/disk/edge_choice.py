"""Checks the edges given for ranking, and converts them to source, destination, relation.

Tables of triples have one row per edge in many libraries but one column per edge here, and NumPy
and torch accept negative indices: without a check, both mistakes would be ranked silently.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.text.how_many import how_many


def chosen_edges(edges: ArrayLike, graph: PartitionedGraph, name: str) -> NDArray[np.int64]:
    """Returns ``[3, n]`` int64 in the caller's numbering; relation 0 if the graph has none.

    Args:
        edges: ``[3, n]`` integers (source, destination, relation), or ``[2, n]`` for a graph
            without relations; a NumPy array, a tensor or lists.
        graph: the graph, for its number of nodes and whether it has relations.
        name: the name of the edges in error messages.

    Raises:
        BadGraph: for another shape or dtype, nodes that do not exist, or relations that are
            negative or of a graph without relations.
    """
    given = np.asarray(edges)
    rows = 3 if graph.columns == 3 else 2
    wanted = "[3, n] integers: source, destination, relation" if rows == 3 else "[2, n] integers"
    if given.ndim != 2 or len(given) not in (rows, 3) or given.dtype.kind not in "iu":
        turned = given.ndim == 2 and given.shape[1] == rows
        raise BadGraph(
            f"{name} has shape {given.shape} and dtype {given.dtype}; give {wanted}"
            + (f", such as {name}.T" if turned else "")
        )
    found = np.zeros((3, given.shape[1]), np.int64)
    found[: len(given)] = given
    ends, relation = found[:2], found[2]
    outside = ((ends < 0) | (ends >= graph.num_nodes)).any(axis=0)
    if outside.any():
        edge = int(outside.argmax())
        raise BadGraph(
            f"{name}: edge {edge} joins {ends[0, edge]} -> {ends[1, edge]}, but there are "
            f"{how_many(graph.num_nodes, 'node')}"
        )
    if rows == 2 and relation.any():
        raise BadGraph(f"{name} has relations, and {graph.folder} was partitioned without any")
    if (relation < 0).any():
        edge = int((relation < 0).argmax())
        raise BadGraph(f"{name}: edge {edge} has relation {relation[edge]}; count from 0")
    return found


def require_trained(relation: NDArray[np.int64], num_relations: int, name: str) -> None:
    """Rejects relations beyond those of the training edges, for which nothing was learned.

    Raises:
        BadGraph: if there is one; the message names it, and the remedy.
    """
    unknown = relation >= max(1, num_relations)
    if unknown.any():
        raise BadGraph(
            f"{name}: edge {int(unknown.argmax())} has relation {relation[unknown.argmax()]}, and "
            f"the edges of training have {how_many(num_relations, 'relation')}: leave out "
            f"{how_many(int(unknown.sum()), 'edge')} with relations from {num_relations} on"
        )
