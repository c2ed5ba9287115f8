"""Capacities for batches of an exact number of graphs, and for packs of a varying number.

Batches of an exact number mix graphs of all sizes, so one capacity slightly above the mean batch
holds them: a batch that exceeds it exchanges graphs with others. A few huge graphs would make the
capacity much too large for all batches, so batches without them get a smaller one where that pays
off.

Packs fill one capacity best. Where graph sizes differ widely, several capacities divide the graphs
by their number of nodes, so that a few large graphs do not make every batch wide.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from staticgraph.packing.placement import fits_alone, homes
from staticgraph.plans.capacity_choice import Chosen, Sizes, capacity_of
from staticgraph.plans.cost import StepCost
from staticgraph.plans.margin import (
    RARE,
    WORTH_A_BUCKET,
    exact_limits,
    find_margin,
    graph_slots,
    rare_cut,
    stream_limits,
    whole_limits,
)
from staticgraph.plans.several import choose_buckets, knee
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

# Rows of a further component over the average for a bucket's nodes, in packs of a varying number of
# graphs. A choice: the scarcest component limits a stream, and this one should not become it.
MORE_ROWS = 1.05
# Where the number of buckets is chosen by cost: each is one more compile and recording.
MOST_BUCKETS = 4


def exact_capacities(
    data: Sizes,
    batch_size: int,
    margin: float | None,
    num_buckets: int | None,
    cost: StepCost,
    seed: int,
    whole: bool,
) -> Chosen:
    """One or two capacities for batches of ``batch_size`` graphs, or of all where there are fewer.

    Args:
        data: the graphs.
        batch_size: the number of graphs in each batch.
        margin: over the mean batch; found by trial where None.
        num_buckets: 1 or 2; chosen by cost where None.
        cost: the cost of a step, used to choose between one and two.
        seed: of the trials.
        whole: whether these are the graphs used for training; else a random part of them is
            allowed for.

    Raises:
        ValueError: a batch size below 1, or a number of buckets other than 1 or 2.
    """
    batch_size, note = _at_most(batch_size, len(data.trained))
    rare = RARE[0]
    if margin is None:
        margin, rare = find_margin(data.trained, batch_size, whole=whole, seed=seed)
    capacities = _whole_and_smaller(data, batch_size, margin, rare, num_buckets, cost, seed)
    efficiency = _mean_efficiency(data.trained, batch_size, capacities[0])
    return Chosen(capacities, efficiency, batch_size, margin, note)


def _at_most(batch_size: int, there_are: int) -> tuple[int, str]:
    """The possible batch size, and a note where it differs from the requested one."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    if batch_size <= there_are:
        return batch_size, ""
    note = f"batch_size={batch_size:,} was asked, a batch is all of {how_many(there_are, 'graph')}"
    return there_are, note


def _whole_and_smaller(
    data: Sizes,
    batch_size: int,
    margin: float,
    rare: float,
    num_buckets: int | None,
    cost: StepCost,
    seed: int,
) -> tuple[Capacity, ...]:
    """One capacity that every exact batch fits, preceded by a smaller one where that pays off."""
    if num_buckets is not None and num_buckets not in (1, 2):
        raise ValueError(
            f"num_buckets={num_buckets} with exact batches: they mix graphs of all sizes, so one "
            "bucket takes them, or two where a few graphs are huge; give no batch_size for more"
        )
    largest = max(1, int(data.maxima[0]))
    limits = whole_limits(data.trained, batch_size, margin, data.maxima, rare, seed)
    whole = capacity_of(limits, data.components, batch_size + 1, largest)
    if num_buckets == 1:
        return (whole,)

    def typical(below: IntArray) -> Capacity:
        """The capacity that batches of graphs with the sizes ``below`` need, at the margin."""
        limits = exact_limits(below, batch_size, margin)
        return capacity_of(limits, data.components, batch_size + 1)

    smaller = rare_cut(data.trained, batch_size, typical, whole, cost)
    return (whole,) if smaller is None else (smaller, whole)


def _mean_efficiency(
    trained: IntArray, batch_size: int, capacity: Capacity
) -> tuple[float, float, float]:
    """Rows of the mean batch over the rows of a capacity, counting only graphs that fit it."""
    trained = trained[fits_alone(trained, capacity)]
    graphs = min(batch_size, len(trained))
    nodes, edges = (trained[:, :2].mean(axis=0) * graphs).tolist()
    return nodes / capacity.nodes, edges / max(1, capacity.edges), graphs / capacity.graphs


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
