"""The bucket that exact batches are balanced for; the others hold batches that do not fit it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from staticgraph.packing.placement import fits_alone
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram


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
