"""Capacities for batches of an exact number of graphs.

Such batches mix graphs of all sizes, so one capacity slightly above the mean batch holds them: a
batch that exceeds it exchanges graphs with others. A few huge graphs would make the capacity much
too large for all batches, so batches without them get a smaller one where that pays off.
"""

from __future__ import annotations

from staticgraph.packing.place import fits_alone
from staticgraph.plans.chosen import Chosen, Sizes, capacity_of
from staticgraph.plans.cost import StepCost
from staticgraph.plans.margin import exact_limits, find_margin, rare_cut, whole_limits
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
    if margin is None:
        margin = find_margin(data.trained, batch_size, whole=whole, seed=seed)
    capacities = _capacities(data, batch_size, margin, num_buckets, cost, seed)
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


def _capacities(
    data: Sizes,
    batch_size: int,
    margin: float,
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
    limits = whole_limits(data.trained, batch_size, margin, data.maxima, seed)
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
