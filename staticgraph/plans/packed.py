"""Capacities for packs of a varying number of graphs: one for a stream, or several by size.

A stream fills one capacity best. Where graph sizes differ widely, several capacities divide the
graphs by their number of nodes, so that a few large graphs do not make every batch wide.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from staticgraph.packing.place import homes
from staticgraph.plans.chosen import Chosen, Sizes, capacity_of
from staticgraph.plans.cost import StepCost
from staticgraph.plans.margin import WORTH_A_BUCKET, graph_slots, stream_limits
from staticgraph.plans.several import choose_buckets, knee
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram

# Rows of a further component over the average for a bucket's nodes, in packs of a varying number of
# graphs. A choice: the scarcest component limits a stream, and this one should not become it.
MORE_ROWS = 1.05
# Where the number of buckets is chosen by cost: each is one more compile and recording.
MOST_BUCKETS = 4


def stream_capacity(data: Sizes, graphs: int, seed: int) -> Chosen:
    """One capacity for packs of about ``graphs`` graphs of a stream, and the trials' efficiency."""
    limits, reached = stream_limits(data.trained, graphs, seed)
    largest, slots = max(1, int(data.maxima[0])), min(graph_slots(graphs), len(data.all))
    limits = np.maximum(limits, data.maxima)
    capacity = capacity_of(limits, data.components, slots + 1, largest)
    return Chosen((capacity,), (reached, reached, reached * graphs / capacity.graphs))


def several_capacities(
    data: Sizes,
    num_buckets: int | None,
    graphs: int,
    cost: StepCost,
    fits: Callable[[Capacity], bool] | None,
) -> Chosen:
    """Capacities for classes of graphs by their node counts; the last holds the largest graph.

    Args:
        data: the graphs.
        num_buckets: the maximum number of capacities; chosen by cost where None.
        graphs: the approximate number of graphs per pack.
        cost: the cost of a step.
        fits: whether the device holds a capacity.
    """
    choices = choose_buckets(
        SizeHistogram.from_sizes(data.trained[:, :2]),
        num_buckets or MOST_BUCKETS,
        graphs=graphs,
        cost=cost,
        fits=fits,
    )
    chosen = choices[-1] if num_buckets else choices[knee(choices, WORTH_A_BUCKET)]
    capacities = [
        Capacity.distinct(
            b.capacity.nodes,
            b.capacity.edges,
            graph_slots(b.capacity.graphs),
            b.capacity.max_graph_nodes,
        )
        for b in chosen.buckets
    ]
    last = capacities[-1]
    largest = max(last.max_graph_nodes, int(data.maxima[0]))
    capacities[-1] = Capacity.distinct(
        max(last.nodes, largest + 1), max(last.edges, int(data.maxima[1])), last.graphs, largest
    )
    distinct = tuple(sorted(set(capacities)))
    if len(data.components) > 2:
        distinct = _with_components(distinct, data)
    return Chosen(distinct, chosen.efficiency())


def _with_components(
    capacities: tuple[Capacity, ...],
    data: Sizes,
) -> tuple[Capacity, ...]:
    """Adds rows for the further components to the capacities of several classes: the average number
    for the class's nodes times :data:`MORE_ROWS`, and enough for each graph by itself."""
    dressed, ordered = [], sorted(capacities, key=lambda c: c.max_graph_nodes)
    of_all, of_trained = homes(data.all, ordered), homes(data.trained, ordered)
    for number, capacity in enumerate(ordered):
        here, trained = data.all[of_all == number], data.trained[of_trained == number]
        totals = (trained if len(trained) else here).sum(axis=0)
        rows = totals[2:] * (MORE_ROWS * capacity.node_limit / max(1, totals[0]))
        limits = np.maximum(np.ceil(rows), here[:, 2:].max(axis=0, initial=0)).astype(np.int64)
        limits = np.concatenate([[capacity.node_limit, capacity.edge_limit], limits])
        largest = capacity.max_graph_nodes
        dressed.append(capacity_of(limits, data.components, capacity.graphs, largest))
    return tuple(dressed)
