"""The graphs that a batcher uses, and the buckets for them.

Their sizes and positions are validated and kept in narrow dtypes. Those that fit no bucket raise,
are left out, or get a bucket of their own. Exact batches are balanced for the main bucket; the
others hold batches that do not fit it.

For 100 million graphs a second copy in int64 is 2.4 GB, so code that looks at all of them works
piece by piece.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import GraphTooLarge
from staticgraph.packing.placement import fits_alone
from staticgraph.plans.plan import BucketPlan, sizes_of
from staticgraph.sizes.capacity import NODES_EDGES, Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.store.positions import positions_in
from staticgraph.text.how_many import how_many, how_many_of

Oversize = Literal["error", "skip", "bucket"]

# From this many graphs on, sizes and order use narrow dtypes: 8 bytes per molecule, not 24.
NARROW_FROM = 1 << 22
# Graphs that are processed together where processing all at once would need another copy.
AT_ONCE = 1 << 21


def narrow_sizes_of(source: Any) -> IntArray:
    """``[n, C]`` sizes of a store or an array, as int64.

    For many graphs, a store's sizes keep the narrow dtype they have there.
    """
    narrow = getattr(source, "narrow_sizes", None)
    if narrow is not None and len(narrow) >= NARROW_FROM:
        return narrow
    return sizes_of(source if narrow is None else narrow)


def checked_bounds(bounds: ArrayLike | None, world_size: int, graphs: int) -> IntArray | None:
    """``[world_size + 1]`` where each rank's graphs begin; None where any rank takes any graph.

    Raises:
        ValueError: the bounds do not divide the graphs among the ranks.
    """
    if bounds is None or world_size == 1:
        return None
    checked = whole_numbers(np.asarray(bounds), "rank_bounds")
    if checked.shape != (world_size + 1,) or (np.diff(checked) < 0).any() or checked[0] != 0:
        raise ValueError(
            f"rank_bounds={checked.tolist()} for {how_many(world_size, 'rank')}: give where each "
            f"rank's graphs begin, from 0, and last their number, {graphs}"
        )
    if checked[-1] != graphs:
        raise ValueError(
            f"rank_bounds end at {checked[-1]}, and there are {how_many(graphs, 'graph')}"
        )
    return checked


def pieces(indices: IntArray) -> Iterator[IntArray]:
    """Splits the indices into pieces, so that no temporary is a second copy of all."""
    return (indices[k : k + AT_ONCE] for k in range(0, len(indices), AT_ONCE))


def histogram_of(sizes: IntArray, indices: IntArray) -> SizeHistogram:
    """How many of these graphs have each size."""
    names = (*NODES_EDGES, *(f"component {c}" for c in range(2, sizes.shape[1])))
    parts = [SizeHistogram.from_sizes(sizes[ids], names) for ids in pieces(indices)]
    nothing = SizeHistogram.from_sizes(np.empty((0, sizes.shape[1]), np.int64), names)
    return SizeHistogram.merged(parts) if parts else nothing


def planned_columns(sizes: IntArray, plan: BucketPlan) -> IntArray:
    """The columns of the sizes that the plan limits: all of them, or only nodes and edges.

    Raises:
        ValueError: the plan was made for other components.
    """
    planned = len(plan.capacities[0].size_limits)
    if planned == len(NODES_EDGES):
        return np.ascontiguousarray(sizes[:, :planned])
    if sizes.shape[1] != planned or any(len(c.size_limits) != planned for c in plan.capacities):
        raise ValueError(
            f"the graphs have {how_many(sizes.shape[1], 'component')}, and the plan's "
            f"{plan.capacities[0]} limits {planned}: make the plan with "
            "plan_buckets(store, ...) of the same data"
        )
    return sizes


def checked_indices(indices: ArrayLike | None, total: int, what: str = "indices") -> IntArray:
    """``[m]`` positions within the store: int64, or int32 for many graphs where it holds them.

    Raises:
        ValueError: a mask whose length is not that of the store.
        IndexError: a position is outside the store.
    """
    dtype = np.int32 if NARROW_FROM <= total <= np.iinfo(np.int32).max else np.int64
    if indices is None:
        return cast(IntArray, np.arange(total, dtype=dtype))
    rows = np.asarray(indices).reshape(-1)
    return cast(IntArray, np.array(positions_in(rows, total, what, outside=IndexError), dtype))


def settle_oversize(
    sizes: IntArray, indices: IntArray, used: SizeHistogram, plan: BucketPlan, oversize: Oversize
) -> tuple[BucketPlan, IntArray]:
    """Handles graphs that fit no bucket; returns the resulting plan and graphs.

    Args:
        sizes: ``[n, C]`` sizes of the store's graphs.
        indices: positions in it of the graphs to use.
        used: the histogram of their sizes.
        plan: the buckets.
        oversize: raise, leave the graphs out, or add a bucket for them.

    Raises:
        GraphTooLarge: a graph fits no bucket, and ``oversize`` is ``error``; the message names the
            first.
    """
    if _fit(used.sizes, plan).all():
        return plan, indices
    fits = np.concatenate([_fit(sizes[ids], plan) for ids in pieces(indices)])
    if oversize == "skip":
        return plan, indices[fits]
    if oversize == "bucket":
        return plan.with_bucket_for(sizes[indices[~fits]].astype(np.int64)), indices
    worst = int(indices[~fits][0])
    raise GraphTooLarge(_too_large(worst, sizes[worst], plan.capacities))


def _fit(sizes: IntArray, plan: BucketPlan) -> NDArray[np.bool_]:
    """``[n]`` whether each graph fits a bucket by itself."""
    fits = np.zeros(len(sizes), dtype=bool)
    for capacity in plan.capacities:
        fits |= fits_alone(sizes, capacity)
    return fits


def _too_large(graph: int, size: IntArray, capacities: Sequence[Capacity]) -> str:
    """The message that names the graph, the component that does not fit, and the remedy."""
    last = capacities[-1]
    most = min(last.node_limit, last.max_graph_nodes)
    names = ("nodes", "edges", *(name for name, _ in last.extra))
    limits = (most, last.edge_limit, *last.extra_limits)
    name, has, holds = next(
        (each for each in zip(names, size.tolist(), limits, strict=True) if each[1] > each[2]),
        (names[0], int(size[0]), most),
    )
    limit = f"max_{name}" if name in NODES_EDGES else f"extra[{name!r}]"
    return (
        f"graph {graph} has {how_many_of(has, name)}; the largest bucket holds {holds:,}: plan for "
        f"data that has it (plan_buckets), or with a larger {limit} in a capacity given by hand; "
        "StaticLoader(oversize='skip') leaves it out, and oversize='bucket' gives it a bucket of "
        "its own"
    )


def main_bucket(used: SizeHistogram, capacities: Sequence[Capacity], batch_size: int) -> int:
    """Chooses the bucket that exact batches are balanced for.

    It is the first bucket that holds every graph of at least half of the random batches, and the
    mean batch of the graphs that fit it; a bucket for batches without huge graphs comes before one
    for all.

    Args:
        used: the sizes of the graphs, at least one.
        capacities: the buckets, ascending.
        batch_size: graphs per batch.

    Returns:
        The bucket's number; where no bucket holds that much, that of the largest, with a warning
        where most batches will be split.
    """
    sizes, counts, graphs = used.sizes, used.counts, int(used.counts.sum())
    mean = used.totals * min(1.0, batch_size / graphs)
    for number, capacity in enumerate(capacities):
        within = fits_alone(sizes, capacity)
        fitting = int(counts[within].sum())
        share = (fitting / graphs) ** batch_size
        totals = counts[within] @ sizes[within]
        mean_batch = totals * (min(graphs, batch_size) / max(1, fitting))
        holds_mean = bool((np.array(capacity.size_limits) >= mean_batch).all())
        if holds_mean and capacity.graph_limit >= min(batch_size, graphs) and share >= 0.5:
            return number
    held = [c.node_limit if c.graph_limit >= batch_size else -1 for c in capacities]
    largest = int(np.argmax(held))
    capacity = capacities[largest]
    if mean[0] > capacity.node_limit or mean[1] > capacity.edge_limit:
        warnings.warn(
            f"{batch_size} of these graphs have {mean[0]:.0f} nodes and {mean[1]:.0f} edges "
            f"on average, the bucket takes {capacity.node_limit} and {capacity.edge_limit}: "
            "most batches will be split in two. Make the plan with plan_buckets(store, "
            "batch_size, indices=...) of these graphs",
            stacklevel=3,
        )
    return largest
