"""Choosing the few capacities that carry a whole data set.

The problem: shapes must be fixed before the first step, and every row that no graph fills is paid
for in each of them. The idea: choose the capacities from the sizes of the graphs alone. Batches of
an exact number of graphs need one capacity, little over the mean batch, since they are repaired by
swaps; packs of a varying number need one too, or several where the graphs differ much.

The invariant: every graph of the data that a plan is made for fits a bucket alone, so that a batch
which fits none can always be split. Memory enters by the test ``fits`` that a caller hands in
(:mod:`staticgraph.memory.budget` has one).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.files.versions import ARITHMETIC, versions
from staticgraph.memory.budget import MemoryBudget
from staticgraph.memory.model import MemoryModel
from staticgraph.packing.coarse import coarsened
from staticgraph.packing.pack import Packing
from staticgraph.packing.packer import TIME_LIMIT, PackingEffort
from staticgraph.packing.place import fits_alone
from staticgraph.plans.by_memory import MIN_STEPS, sized_plan
from staticgraph.plans.cost import StepCost
from staticgraph.plans.margin import (
    WORTH_A_BUCKET,
    exact_limits,
    find_margin,
    graph_slots,
    rare_cut,
    stream_limits,
    whole_limits,
)
from staticgraph.plans.order_statistics import likely_order_statistics
from staticgraph.plans.packings import packings_for
from staticgraph.plans.plan import BucketPlan, histogram_of, sizes_of
from staticgraph.plans.several import choose_buckets, knee
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.reserves import with_reserves
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

__all__ = ["BucketPlan", "histogram_of", "plan_buckets", "sizes_of"]

# Rows of a further component over what goes with a bucket's nodes on average, in packs of a varying
# number of graphs; a choice: a stream fills the scarcest component, and this one shall not be it.
MORE_ROWS = 1.05
# Where the number of buckets is chosen by cost: each is one more compile and recording.
MOST_BUCKETS = 4


def plan_buckets(
    source: Any,
    batch_size: int | None = None,
    *,
    indices: ArrayLike | None = None,
    num_buckets: int | None = None,
    graphs: int = 128,
    margin: float | None = None,
    cost: StepCost | None = None,
    fits: Callable[[Capacity], bool] | None = None,
    memory: MemoryModel | None = None,
    budget: MemoryBudget | None = None,
    min_steps_per_epoch: int = MIN_STEPS,
    attention: str | None = None,
    effort: PackingEffort = "fast",
    time_limit: float = TIME_LIMIT,
    progress: bool = False,
    seed: int = 0,
) -> BucketPlan:
    """Chooses the capacities for a data set.

    With a batch size, training batches hold exactly so many graphs, and one bucket takes them all;
    a second, smaller one is added where a few huge graphs would make it much too large. Without,
    batches hold as many graphs as fit, about ``graphs``, and several buckets divide the graphs by
    their number of nodes.

    Args:
        source: a store (anything with ``.sizes`` ``[n, C]`` and perhaps ``.schema``), a
            :class:`SizeHistogram`, or the sizes themselves.
        batch_size: exactly so many graphs in each training batch; None packs freely. Where fewer
            graphs train a batch is all of them, ``plan.batch_size`` says so and ``plan.note`` why.
        indices: the graphs that will train, where the plan need only hold their mean; all
            graphs of the source must still fit alone.
        num_buckets: how many capacities; chosen by cost where None.
        graphs: about so many graphs per batch where there is no ``batch_size``; all, where there
            are fewer.
        margin: how far the limits of exact batches lie over the mean batch; by trial where None.
        cost: of a step, to choose between buckets; a guess for message passing where None.
        fits: whether the device holds a capacity; every capacity where None.
        memory: predicts the bytes of a step (:func:`staticgraph.probing.probe.probe`); with a
            ``budget`` and no ``batch_size`` the largest batches that fit are chosen.
        budget: the cap that the plan is held to; its own memory model counts where ``memory`` is
            None.
        min_steps_per_epoch: batches per epoch that the choice by memory leaves at least.
        attention: of the model, among the nodes of each graph, as for :func:`staticgraph.convert`;
            None where it has none. With ``auto`` or ``size-classed`` and a batch size the main
            bucket promises how large the k-th largest graph of a batch is, as the data shows it
            (:mod:`staticgraph.plans.order_statistics`); the few batches that are wider exchange
            graphs with others (:mod:`staticgraph.packing.exchange`).
        effort: ``best`` packs the graphs by linear programs (SciPy), once, and the plan keeps the
            packs, for a loader to deal the graphs to; only without a ``batch_size``.
        time_limit: seconds for that.
        progress: whether to show how far that is, on stderr.
        seed: of the trials.

    Raises:
        ImportError: ``best`` without SciPy.
        BudgetExceeded: the batches that were asked for, or any, need more than the budget.
        ValueError: there are no graphs, or more than two buckets are asked for exact batches, or a
            bucket does not fit the device.
    """
    sizes = sizes_of(source)
    schema = getattr(source, "schema", None)
    if not len(sizes):
        raise ValueError("a plan needs at least one graph; this data set is empty")
    trained = sizes if indices is None else sizes[np.asarray(indices)]
    if not len(trained):
        raise ValueError("indices is empty; a plan needs at least one graph to train on")
    if effort != "fast" and (batch_size is not None or memory is not None or budget is not None):
        raise ValueError(
            f"effort={effort!r} is of packs of a varying number of graphs; batches of an exact "
            "number are drawn again each epoch: give graphs= and no batch_size, memory or budget"
        )
    if memory is None and budget is not None:
        memory = budget.memory
    if memory is not None or budget is not None:
        if memory is None or budget is None:
            raise ValueError("memory= and budget= go together: what a step takes, and the cap")

        def make(size: int, tried: float | None) -> BucketPlan:
            return plan_buckets(
                source,
                size,
                indices=indices,
                num_buckets=num_buckets,
                margin=tried,
                cost=cost,
                fits=fits,
                attention=attention,
                seed=seed,
            )

        return sized_plan(
            make,
            len(trained),
            memory,
            budget,
            min_steps_per_epoch=min_steps_per_epoch,
            batch_size=batch_size,
            margin=margin,
        )
    histogram = histogram_of(source)
    maxima = histogram.maxima
    components = histogram.components
    price, note = cost or StepCost(), ""
    graphs = min(graphs, len(trained))
    if batch_size is not None:
        batch_size, note = _at_most(batch_size, len(trained))
        found = margin
        if found is None:
            found = find_margin(trained, batch_size, whole=indices is not None, seed=seed)
        capacities = _exact_capacities(
            trained, maxima, batch_size, found, num_buckets, price, seed, components
        )
        efficiency = _mean_efficiency(trained, batch_size, capacities[0])
    elif num_buckets == 1 and effort == "fast":
        capacities, efficiency = _stream_capacity(sizes, trained, maxima, graphs, seed, components)
        found = None
    else:
        capacities, efficiency = _several_capacities(
            trained, maxima, num_buckets, graphs, price, fits
        )
        if len(components) > 2:
            capacities = _with_components(capacities, trained, sizes, components)
        found = None
        loss = coarsened(histogram).loss
        if loss:
            note = f"many distinct sizes: rounded up by {loss:.2%} of the rows while choosing"
        if len(capacities) == 1:
            note = ""
            if effort == "fast":
                capacities, efficiency = _stream_capacity(
                    sizes, trained, maxima, graphs, seed, components
                )
    capacities = tuple(sorted(with_reserves(capacity, schema) for capacity in capacities))
    if batch_size is not None and attention in ("auto", "size-classed"):
        capacities = _with_order_statistics(capacities, trained[:, 0], batch_size, seed)
    _check_fits(capacities, fits)
    packings: tuple[Packing, ...] = ()
    if effort != "fast":
        packings = packings_for(
            trained, capacities, effort=effort, time_limit=time_limit, progress=progress
        )
        note, efficiency = _of_packings(packings, capacities)
    return BucketPlan(
        capacities=capacities,
        batch_size=batch_size,
        schema=schema,
        digest=histogram.digest,
        strategy="exact" if batch_size is not None else "packed",
        num_graphs=histogram.num_graphs,
        maxima=tuple(maxima.tolist()),
        margin=found,
        efficiency=efficiency,
        note=note,
        versions=tuple(versions(ARITHMETIC).items()),
        packings=packings,
    )


def _at_most(batch_size: int, there_are: int) -> tuple[int, str]:
    """The batch size that so many graphs allow, and a note where it is not what was asked."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1")
    if batch_size <= there_are:
        return batch_size, ""
    note = f"batch_size={batch_size:,} was asked, a batch is all of {how_many(there_are, 'graph')}"
    return there_are, note


def _of_packings(
    packings: tuple[Packing, ...], capacities: tuple[Capacity, ...]
) -> tuple[str, tuple[float, float, float]]:
    """A note, and real rows over physical rows of nodes, edges and graphs, of kept packs."""
    of = {capacity.size_limits: capacity for capacity in capacities}
    real, rows = np.zeros(3), np.zeros(3)
    for packing in packings:
        c = of[tuple(packing.limits.tolist())]
        real += [*packing.histogram.totals[:2], packing.histogram.num_graphs]
        rows += np.array([c.nodes, c.edges, c.graphs], dtype=np.float64) * packing.num_packs
    packs = sum(packing.num_packs for packing in packings)
    least = sum(packing.proven or packing.volume_bound for packing in packings)
    nodes, edges, graphs = (real / np.maximum(1, rows)).tolist()
    kept = f"{how_many(packs, 'pack')} {'is' if packs == 1 else 'are'} kept; none of fewer than "
    kept += f"{least:,} exist"
    return kept, (nodes, edges, graphs)


def _exact_capacities(
    trained: IntArray,
    maxima: IntArray,
    batch_size: int,
    margin: float,
    num_buckets: int | None,
    price: StepCost,
    seed: int,
    components: tuple[str, ...],
) -> tuple[Capacity, ...]:
    """One capacity that every exact batch fits, after a smaller one where that pays."""
    if num_buckets is not None and num_buckets not in (1, 2):
        raise ValueError(
            f"num_buckets={num_buckets} with exact batches: they mix graphs of all sizes, so one "
            "bucket takes them, or two where a few graphs are huge; give no batch_size for more"
        )
    largest = max(1, int(maxima[0]))
    limits = whole_limits(trained, batch_size, margin, maxima, seed)
    whole = _capacity(limits, components, batch_size + 1, largest)
    if num_buckets == 1:
        return (whole,)

    def typical(below: IntArray) -> Capacity:
        return _capacity(exact_limits(below, batch_size, margin), components, batch_size + 1)

    smaller = rare_cut(trained, batch_size, typical, whole, price)
    return (whole,) if smaller is None else (smaller, whole)


def _with_order_statistics(
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


def _capacity(
    limits: IntArray, components: tuple[str, ...], graphs: int, largest: int = 0
) -> Capacity:
    """Usable limits of each component -> the physical rows that hold them."""
    nodes, edges, *more = limits.tolist()
    # At least two, since a leading size of 1 is what everything that is broadcast has.
    extra = [(name, max(2, rows + 1)) for name, rows in zip(components[2:], more, strict=True)]
    return Capacity.distinct(max(nodes, largest) + 1, edges, graphs, largest, extra)


def _with_components(
    capacities: tuple[Capacity, ...],
    trained: IntArray,
    sizes: IntArray,
    components: tuple[str, ...],
) -> tuple[Capacity, ...]:
    """The capacities of several classes with rows for the further components: as many as go with
    the class's nodes on average and :data:`MORE_ROWS`, and enough for each graph alone."""
    dressed = []
    for capacity in sorted(capacities, key=lambda c: c.max_graph_nodes):
        mine, trained = _parted(trained, capacity)
        here, sizes = _parted(sizes, capacity)
        high = capacity.max_graph_nodes
        totals = (mine if len(mine) else here).sum(axis=0)
        wanted = totals[2:] * (MORE_ROWS * capacity.node_limit / max(1, totals[0]))
        limits = np.maximum(np.ceil(wanted), here[:, 2:].max(axis=0, initial=0)).astype(np.int64)
        least = np.array([capacity.node_limit, capacity.edge_limit])
        dressed.append(
            _capacity(np.concatenate([least, limits]), components, capacity.graphs, high)
        )
    return tuple(dressed)


def _parted(sizes: IntArray, capacity: Capacity) -> tuple[IntArray, IntArray]:
    """The graphs whose nodes and edges a capacity takes, and those left to the next."""
    nodes, edges = sizes[:, 0], sizes[:, 1]
    most = min(capacity.max_graph_nodes, capacity.node_limit)
    fits = (nodes <= most) & (edges <= capacity.edge_limit)
    return sizes[fits], sizes[~fits]


def _mean_efficiency(
    trained: IntArray, batch_size: int, capacity: Capacity
) -> tuple[float, float, float]:
    """Rows of the mean batch over the rows of a capacity, of the graphs that it takes."""
    trained = trained[fits_alone(trained, capacity)]
    graphs = min(batch_size, len(trained))
    nodes, edges = (trained[:, :2].mean(axis=0) * graphs).tolist()
    return nodes / capacity.nodes, edges / max(1, capacity.edges), graphs / capacity.graphs


def _stream_capacity(
    sizes: IntArray,
    trained: IntArray,
    maxima: IntArray,
    graphs: int,
    seed: int,
    components: tuple[str, ...],
) -> tuple[tuple[Capacity, ...], tuple[float, float, float]]:
    """One capacity for packs of a stream, and what its trials filled."""
    limits, reached = stream_limits(trained, graphs, seed)
    largest, slots = max(1, int(maxima[0])), min(graph_slots(graphs), len(sizes))
    capacity = _capacity(np.maximum(limits, maxima), components, slots + 1, largest)
    return (capacity,), (reached, reached, reached * graphs / capacity.graphs)


def _several_capacities(
    trained: IntArray,
    maxima: IntArray,
    num_buckets: int | None,
    graphs: int,
    price: StepCost,
    fits: Callable[[Capacity], bool] | None,
) -> tuple[tuple[Capacity, ...], tuple[float, float, float]]:
    """Capacities for classes of graphs by their nodes; the last holds the largest of all."""
    choices = choose_buckets(
        SizeHistogram.from_sizes(trained[:, :2]),
        num_buckets or MOST_BUCKETS,
        graphs=graphs,
        cost=price,
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
    largest = max(last.max_graph_nodes, int(maxima[0]))
    capacities[-1] = Capacity.distinct(
        max(last.nodes, largest + 1), max(last.edges, int(maxima[1])), last.graphs, largest
    )
    return tuple(sorted(set(capacities))), chosen.efficiency()


def _check_fits(capacities: tuple[Capacity, ...], fits: Callable[[Capacity], bool] | None) -> None:
    """Raises where the device does not hold a bucket."""
    for capacity in capacities:
        if fits is not None and not fits(capacity):
            raise ValueError(
                f"the device does not hold a bucket {capacity}: ask for fewer graphs per batch, or "
                "let several buckets divide the graphs (no batch_size, num_buckets=4)"
            )
