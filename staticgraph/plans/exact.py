"""Capacities for batches of an exact number of graphs.

They mix graphs of all sizes, so one capacity a little over the mean batch carries them: a batch
that exceeds it exchanges graphs with others. A few huge graphs would make it much too large for
all, so where that pays the batches without them get a smaller one.
"""

from __future__ import annotations

from dataclasses import replace

from staticgraph.packing.place import fits_alone
from staticgraph.plans.chosen import Chosen, Sizes, capacity_of
from staticgraph.plans.cost import StepCost
from staticgraph.plans.margin import exact_limits, find_margin, rare_cut, whole_limits
from staticgraph.plans.order_statistics import likely_order_statistics
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many


def exact_capacities(
    data: Sizes,
    batch_size: int,
    margin: float | None,
    num_buckets: int | None,
    cost: StepCost,
    seed: int,
    whole: bool,
) -> Chosen:
    """One capacity, or two, for batches of ``batch_size`` graphs; of all, where there are fewer.

    Args:
        data: the graphs.
        batch_size: so many in each batch.
        margin: over the mean batch; by trial where None.
        num_buckets: 1 or 2; by cost where None.
        cost: of a step, to choose between one and two.
        seed: of the trials.
        whole: these graphs will train; else allow for a random part of them.

    Raises:
        ValueError: no graph in a batch, or other than one or two buckets.
    """
    batch_size, note = _at_most(batch_size, len(data.trained))
    if margin is None:
        margin = find_margin(data.trained, batch_size, whole=whole, seed=seed)
    capacities = _capacities(data, batch_size, margin, num_buckets, cost, seed)
    efficiency = _mean_efficiency(data.trained, batch_size, capacities[0])
    return Chosen(capacities, efficiency, batch_size, margin, note)


def _at_most(batch_size: int, there_are: int) -> tuple[int, str]:
    """The batch size that so many graphs allow, and a note where it is not what was asked."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    if batch_size <= there_are:
        return batch_size, ""
    note = f"batch_size={batch_size:,} was asked, a batch is all of {how_many(there_are, 'graph')}"
    return there_are, note


def _capacities(
    data: Sizes,
    batch_size: int,
    margin: float,
    num_buckets: int | None,
    cost: StepCost,
    seed: int,
) -> tuple[Capacity, ...]:
    """One capacity that every exact batch fits, after a smaller one where that pays."""
    if num_buckets is not None and num_buckets not in (1, 2):
        raise ValueError(
            f"num_buckets={num_buckets} with exact batches: they mix graphs of all sizes, so one "
            "bucket takes them, or two where a few graphs are huge; give no batch_size for more"
        )
    largest = max(1, int(data.maxima[0]))
    limits = whole_limits(data.trained, batch_size, margin, data.maxima, seed)
    whole = capacity_of(limits, data.components, batch_size + 1, largest)
    if num_buckets == 1:
        return (whole,)

    def typical(below: IntArray) -> Capacity:
        """What batches of graphs of the sizes ``below`` need, at the margin."""
        limits = exact_limits(below, batch_size, margin)
        return capacity_of(limits, data.components, batch_size + 1)

    smaller = rare_cut(data.trained, batch_size, typical, whole, cost)
    return (whole,) if smaller is None else (smaller, whole)


def _mean_efficiency(
    trained: IntArray, batch_size: int, capacity: Capacity
) -> tuple[float, float, float]:
    """Rows of the mean batch over the rows of a capacity, of the graphs that it takes."""
    trained = trained[fits_alone(trained, capacity)]
    graphs = min(batch_size, len(trained))
    nodes, edges = (trained[:, :2].mean(axis=0) * graphs).tolist()
    return nodes / capacity.nodes, edges / max(1, capacity.edges), graphs / capacity.graphs


def with_order_statistics(
    capacities: tuple[Capacity, ...], nodes: IntArray, batch_size: int, seed: int
) -> tuple[Capacity, ...]:
    """The first capacity with what the data promises of its order statistics. No other is added for
    the few batches that are wider: graphs are exchanged, and what is left is halved."""
    main = capacities[0]
    within = nodes[nodes <= main.max_graph_nodes]
    if main.extra or not len(within):
        return capacities
    promised = likely_order_statistics(within, min(batch_size, len(within)), main, seed)
    if not promised:
        return capacities
    return (replace(main, order_statistics=promised), *capacities[1:])
