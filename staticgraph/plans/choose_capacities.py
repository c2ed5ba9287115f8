"""Choosing the few capacities that hold a whole data set.

The problem: shapes must be fixed before the first step, and every row that no graph fills costs
time and memory in every batch. The idea: choose the capacities from the sizes of the graphs alone.
Batches of an exact number of graphs need one capacity, slightly larger than the mean batch, since
swaps repair the batches that exceed it; packs of a varying number of graphs need one capacity too,
or several where graph sizes differ widely.

The invariant: every graph of the data that a plan is made for fits a bucket by itself, so a batch
that fits no bucket can always be split. Memory enters through the predicate ``fits`` that the
caller passes in (:mod:`staticgraph.memory.budget` has one).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.files.versions import ARITHMETIC, versions
from staticgraph.memory.budget import MemoryBudget
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.packing.choose_packing import TIME_LIMIT, PackingEffort
from staticgraph.packing.coarse import coarsened
from staticgraph.packing.packing_result import Packing
from staticgraph.plans.by_memory import MIN_STEPS, sized_plan
from staticgraph.plans.capacities import exact_capacities, several_capacities, stream_capacity
from staticgraph.plans.capacity_choice import Chosen, Sizes
from staticgraph.plans.cost import StepCost
from staticgraph.plans.packings import packings_for
from staticgraph.plans.plan import BucketPlan, histogram_of, sizes_of
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.reserves import of_equal_graphs, with_reserves
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import real_option, whole_option


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
    effort: PackingEffort = "fast",
    time_limit: float = TIME_LIMIT,
    progress: bool = False,
    seed: int = 0,
) -> BucketPlan:
    """Chooses the capacities for a data set.

    With a batch size, training batches hold exactly that many graphs, and one bucket takes them
    all; a second, smaller bucket is added where a few huge graphs would make it much too large.
    Without one, batches hold as many graphs as fit, about ``graphs``, and several buckets divide
    the graphs by their number of nodes.

    Args:
        source: a store (anything with ``.sizes`` ``[n, C]`` and optionally ``.schema``), a
            :class:`SizeHistogram`, or the sizes themselves.
        batch_size: the exact number of graphs in each training batch; None packs freely. If fewer
            graphs are available for training, a batch holds all of them; ``plan.batch_size`` then
            has that number and ``plan.note`` says why.
        indices: the graphs used for training; batches only need to hold their mean, but every
            graph of the source must still fit by itself.
        num_buckets: the maximum number of capacities; chosen by cost where None. ``plan.note``
            says so where fewer cost less.
        graphs: the approximate number of graphs per batch without ``batch_size``; all graphs,
            where there are fewer.
        margin: how far the limits of exact batches lie above the mean batch; found by trial where
            None.
        cost: the cost of a step, used to choose between buckets; a guess for message passing where
            None.
        fits: whether the device holds a capacity; every capacity where None.
        memory: predicts the bytes of a step (:func:`staticgraph.probing.probe.probe`); with a
            ``budget`` and no ``batch_size``, the largest batches that fit are chosen.
        budget: the cap that the plan must respect; its own memory model is used where ``memory``
            is None.
        min_steps_per_epoch: the least number of batches per epoch when memory sets the batch size.
        effort: ``best`` packs the graphs once by linear programs (SciPy), and the plan keeps the
            packs, so that a loader can assign graphs to them; only without a ``batch_size``.
        time_limit: seconds for that packing.
        progress: whether to show its progress on stderr.
        seed: of the random trials.

    Raises:
        ImportError: ``best`` without SciPy.
        BudgetExceeded: the given batch size, or even batches of one graph, need more than the
            budget.
        ValueError: there are no graphs, more than two buckets are requested for exact batches, a
            bucket does not fit the device, a number is out of range or no whole number, or
            arguments exclude each other.
    """
    batch_size = None if batch_size is None else whole_option("batch_size", batch_size)
    num_buckets = None if num_buckets is None else whole_option("num_buckets", num_buckets, 1)
    graphs, seed = whole_option("graphs", graphs, 1), whole_option("seed", seed)
    margin = None if margin is None else real_option("margin", margin)
    min_steps_per_epoch = whole_option("min_steps_per_epoch", min_steps_per_epoch)
    time_limit = real_option("time_limit", time_limit, 0, more=True, infinite=True)
    sizes = sizes_of(source)
    trained = _trained(sizes, indices)
    if effort != "fast":
        _check_packs_asked(effort, batch_size, memory, budget)
    if memory is None and budget is not None:
        memory = budget.memory
    histogram, price = histogram_of(source), cost or StepCost()
    data = Sizes(sizes, trained, histogram.maxima, histogram.components)

    def planned(chosen: Chosen, strategy: str) -> BucketPlan:
        """Builds the plan from these limits, and checks that they fit."""
        schema = getattr(source, "schema", None)
        capacities = _with_reserves(chosen, data, schema)
        _check_fits(capacities, fits)
        return BucketPlan(
            capacities=capacities,
            batch_size=chosen.batch_size,
            schema=schema,
            digest=histogram.digest,
            strategy=strategy,
            num_graphs=histogram.num_graphs,
            maxima=tuple(histogram.maxima.tolist()),
            margin=chosen.margin,
            efficiency=chosen.efficiency,
            note=chosen.note,
            versions=tuple(versions(ARITHMETIC).items()),
            source=type(None) if schema is None else weakref.ref(source),
        )

    def exact(size: int, tried: float | None) -> BucketPlan:
        """The plan for batches of exactly ``size`` graphs, at a given margin or one found here."""
        whole = indices is not None
        chosen = exact_capacities(data, size, tried, num_buckets, price, seed, whole)
        return planned(chosen, "exact")

    if memory is not None and budget is not None:
        return sized_plan(
            exact,
            len(trained),
            memory,
            budget,
            min_steps_per_epoch=min_steps_per_epoch,
            batch_size=batch_size,
            margin=margin,
        )
    if memory is not None or budget is not None:
        raise ValueError("memory= and budget= go together: what a step takes, and the cap")
    if batch_size is not None:
        return exact(batch_size, margin)
    about, streamed = min(graphs, len(trained)), effort == "fast"
    chosen = _for_packs(data, histogram, num_buckets, about, price, fits, streamed, seed)
    plan = planned(chosen, "packed")
    if streamed:
        return plan
    packings = packings_for(
        trained, plan.capacities, effort=effort, time_limit=time_limit, progress=progress
    )
    note, efficiency = _of_packings(packings, plan.capacities)
    return replace(plan, packings=packings, note=note, efficiency=efficiency)


def _with_reserves(chosen: Chosen, data: Sizes, schema: Schema | None) -> tuple[Capacity, ...]:
    """Adds reserves for the data's own axes."""
    capacities = tuple(sorted(with_reserves(each, schema) for each in chosen.capacities))
    if data.all[:, 0].min() == data.maxima[0] > 1 and not capacities[0].extra:
        capacities = tuple(of_equal_graphs(each, int(data.maxima[0])) for each in capacities)
    return capacities


def _trained(sizes: IntArray, indices: ArrayLike | None) -> IntArray:
    """The sizes of the training graphs; raises where there are none."""
    if not len(sizes):
        raise ValueError("a plan needs at least one graph; this data set is empty")
    trained = sizes if indices is None else sizes[np.asarray(indices)]
    if not len(trained):
        raise ValueError("indices is empty; a plan needs at least one graph to train on")
    return trained


def _check_packs_asked(
    effort: PackingEffort,
    batch_size: int | None,
    memory: MemoryModel | None,
    budget: MemoryBudget | None,
) -> None:
    """Rejects an effort for batches that are not kept as packs."""
    if batch_size is not None or memory is not None or budget is not None:
        raise ValueError(
            f"effort={effort!r} is of packs of a varying number of graphs; batches of an exact "
            "number are drawn again each epoch: give graphs= and no batch_size, memory or budget"
        )


def _for_packs(
    data: Sizes,
    histogram: SizeHistogram,
    num_buckets: int | None,
    graphs: int,
    cost: StepCost,
    fits: Callable[[Capacity], bool] | None,
    streamed: bool,
    seed: int,
) -> Chosen:
    """The capacities for packs of about ``graphs`` graphs: one, or several where that is cheaper.

    A single capacity is measured by the stream that fills it, unless its packs are kept (not
    ``streamed``).
    """
    if num_buckets == 1 and streamed:
        return stream_capacity(data, graphs, seed)
    chosen = several_capacities(data, num_buckets, graphs, cost, fits)
    shapes = len(chosen.capacities)
    if shapes > 1:
        notes = [_of_coarsening(histogram)]
    else:
        chosen = stream_capacity(data, graphs, seed) if streamed else chosen
        notes = [chosen.note]
    if num_buckets is not None and shapes < num_buckets:
        notes.append(f"num_buckets={num_buckets} was asked, {shapes:,} cost less than more")
    return chosen._replace(note="; ".join(note for note in notes if note))


def _of_coarsening(histogram: SizeHistogram) -> str:
    """A note where there were too many distinct sizes to consider each of them."""
    loss = coarsened(histogram).loss
    return f"many distinct sizes: rounded up by {loss:.2%} of the rows while choosing" * bool(loss)


def _of_packings(
    packings: tuple[Packing, ...], capacities: tuple[Capacity, ...]
) -> tuple[str, tuple[float, float, float]]:
    """For kept packs, a note and real rows over physical rows of nodes, edges and graphs."""
    of = {capacity.size_limits: capacity for capacity in capacities}
    real, rows = np.zeros(3), np.zeros(3)
    for packing in packings:
        c = of[tuple(packing.limits.tolist())]
        real += [*packing.histogram.totals[:2], packing.histogram.num_graphs]
        rows += np.array([c.nodes, c.edges, c.graphs], dtype=np.float64) * packing.num_packs
    packs = sum(packing.num_packs for packing in packings)
    least = sum(packing.proven or packing.volume_bound for packing in packings)
    nodes, edges, graphs = (real / np.maximum(1, rows)).tolist()
    count = f"{how_many(packs, 'pack')} {'is' if packs == 1 else 'are'} kept; none of fewer than "
    count += f"{least:,} exist"
    return count, (nodes, edges, graphs)


def _check_fits(capacities: tuple[Capacity, ...], fits: Callable[[Capacity], bool] | None) -> None:
    """Raises where the device cannot hold a bucket."""
    for capacity in capacities:
        if fits is not None and not fits(capacity):
            raise ValueError(
                f"the device does not hold a bucket {capacity}: ask for fewer graphs per batch, or "
                "let several buckets divide the graphs (no batch_size, num_buckets=4)"
            )
