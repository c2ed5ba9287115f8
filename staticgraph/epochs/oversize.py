"""Graphs that fit no bucket of a plan: raise, leave them out, or add a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from staticgraph.epochs.used_graphs import pieces
from staticgraph.errors import GraphTooLarge
from staticgraph.packing.placement import fits_alone
from staticgraph.plans.plan import BucketPlan
from staticgraph.sizes.capacity import NODES_EDGES, Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many_of

Oversize = Literal["error", "skip", "bucket"]


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
