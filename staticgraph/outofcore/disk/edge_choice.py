"""Edges as a caller names them for ranking -> source, destination, relation, each checked.

A table of triples has a row per edge in many libraries and a column per edge here, and NumPy and
torch index from the end where a number is negative: both would be ranked without a word.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import BadGraph
from staticgraph.outofcore.disk.graph import PartitionedGraph
from staticgraph.text.how_many import how_many


def chosen_edges(edges: ArrayLike, graph: PartitionedGraph, name: str) -> NDArray[np.int64]:
    """``[3, n]`` int64 in the caller's numbers; relation 0 where the graph has none.

    Args:
        edges: ``[3, n]`` integers (source, destination, relation), ``[2, n]`` of a graph without
            relations; of NumPy, torch or lists.
        graph: says which nodes there are, and whether there are relations.
        name: what an error calls them.

    Raises:
        BadGraph: another shape, nodes that the graph does not have, or a negative relation.
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
    """Refuses relations that no edge of training has: nothing was learned of them.

    Raises:
        BadGraph: the message names one, and the remedy.
    """
    unknown = relation >= max(1, num_relations)
    if unknown.any():
        raise BadGraph(
            f"{name}: edge {int(unknown.argmax())} has relation {relation[unknown.argmax()]}, and "
            f"the edges of training have {how_many(num_relations, 'relation')}: leave out "
            f"{how_many(int(unknown.sum()), 'edge')} with relations from {num_relations} on"
        )
