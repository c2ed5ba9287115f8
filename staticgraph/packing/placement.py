"""Which capacity holds a graph, a batch, and the graphs of a pack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray


def limits_array(capacities: Sequence[Capacity]) -> IntArray:
    """The limits of each bucket, ``[buckets, 4 + X]``.

    The columns are nodes, edges, graphs, nodes of one graph, and each further component.
    """
    rows = [
        (c.node_limit, c.edge_limit, c.graph_limit, c.max_graph_nodes, *c.extra_limits)
        for c in capacities
    ]
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1)


def size_limits(limits: IntArray) -> tuple[int, ...]:
    """The limits of each column of a size, from a row of :func:`limits_array`."""
    row = limits.tolist()
    return (row[0], row[1], *row[4:])


def fits_alone(sizes: IntArray, capacity: Capacity) -> NDArray[np.bool_]:
    """``[n]`` whether each graph of ``sizes`` ``[n, C]`` fits the capacity by itself."""
    most = min(capacity.node_limit, capacity.max_graph_nodes)
    fits = (sizes[:, 0] <= most) & (sizes[:, 1] <= capacity.edge_limit)
    for column, limit in enumerate(capacity.extra_limits, start=2):
        fits &= sizes[:, column] <= limit
    return fits


def homes(sizes: IntArray, capacities: Sequence[Capacity]) -> IntArray:
    """``[n]`` int64: for each graph, the capacity for the smallest graphs that holds it, or -1.

    Capacities are ordered by the largest graph they take, not by rows: a bucket for a few huge
    graphs may have fewer rows than one for many small ones, and small graphs would be wasteful
    there.
    """
    numbers = np.full(len(sizes), -1, dtype=np.int64)
    by_graph = sorted(range(len(capacities)), key=lambda k: (capacities[k].max_graph_nodes, k))
    for number in reversed(by_graph):
        numbers[fits_alone(sizes, capacities[number])] = number
    return numbers


@loop
def group_by_pack(packs: IntArray, num_packs: int) -> tuple[IntArray, IntArray]:
    """Positions grouped by pack, each group in input order, and the ``[P + 1]`` group bounds."""
    bounds = np.zeros(num_packs + 1, np.int64)
    for pack in packs:
        bounds[pack + 1] += 1
    for p in range(num_packs):
        bounds[p + 1] += bounds[p]
    place = bounds[:-1].copy()
    grouped = np.empty(len(packs), np.int64)
    for k in range(len(packs)):
        grouped[place[packs[k]]] = k
        place[packs[k]] += 1
    return grouped, bounds


@loop
def place_batches(sizes: IntArray, order: IntArray, bounds: IntArray, limits: IntArray) -> IntArray:
    """The first bucket that holds each batch, or -1.

    Args:
        sizes: ``[., 2 + X]`` nodes, edges and the further components.
        order: positions in ``sizes``, batch by batch.
        bounds: ``[K + 1]`` where each batch starts and ends in ``order``.
        limits: ``[buckets, 4 + X]`` from :func:`limits_array`.
    """
    buckets = np.full(len(bounds) - 1, -1, np.int64)
    more = np.zeros(sizes.shape[1] - 2, np.int64)
    for b in range(len(buckets)):
        nodes, edges, largest = 0, 0, 0
        more[:] = 0
        for k in range(bounds[b], bounds[b + 1]):
            nodes += sizes[order[k], 0]
            edges += sizes[order[k], 1]
            largest = max(largest, sizes[order[k], 0])
            for c in range(len(more)):
                more[c] += sizes[order[k], 2 + c]
        graphs = bounds[b + 1] - bounds[b]
        for number in range(len(limits)):
            fits = (
                nodes <= limits[number, 0]
                and edges <= limits[number, 1]
                and graphs <= limits[number, 2]
                and largest <= limits[number, 3]
            )
            for c in range(len(more)):
                fits = fits and more[c] <= limits[number, 4 + c]
            if fits:
                buckets[b] = number
                break
    return buckets
