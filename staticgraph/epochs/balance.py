"""How evenly the work of a step is split among the ranks, from sizes and plan alone.

The problem: at every step all ranks wait for the slowest, and whether that costs 1% or 20% should
be known before a cluster is requested. The idea: an epoch is a pure function of seed and number, so
every rank's real rows at every step are known; the ranks' *efficiency* is the mean rank's rows over
the fullest rank's, over all steps. In a recorded step the physical rows are the same on all ranks;
the efficiency then says how the padding is distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from staticgraph.epochs.batcher import Batcher
from staticgraph.plans.plan import BucketPlan
from staticgraph.sizes.whole_numbers import IntArray


@dataclass(frozen=True, slots=True)
class Balance:
    """The balance among the ranks in one epoch.

    Attributes:
        world_size: number of ranks.
        steps: number of steps, the same for each rank.
        full: steps at which every rank has a batch.
        efficiency: for nodes and edges, the mean rank's rows over the fullest rank's, summed over
            all steps; above 0, at most 1.
        full_efficiency: the same over the full steps alone; NaN where there are no full steps.
        padded: the share of the ranks' batches that is all padding.
    """

    world_size: int
    steps: int
    full: int
    efficiency: tuple[float, float]
    full_efficiency: tuple[float, float]
    padded: float


def balance_of(rows: IntArray) -> Balance:
    """Computes the balance of an epoch.

    Args:
        rows: ``[steps, world_size, 1 + C]`` graphs, nodes, edges and more, as
            :meth:`staticgraph.epochs.batcher.Batcher.rows` returns them.
    """
    graphs = rows[:, :, 0]
    full = (graphs > 0).all(axis=1)
    return Balance(
        world_size=rows.shape[1],
        steps=len(rows),
        full=int(full.sum()),
        efficiency=_efficiency(rows),
        full_efficiency=_efficiency(rows[full]),
        padded=float((graphs == 0).mean()) if graphs.size else 0.0,
    )


def balance_of_plan(
    sizes: Any, plan: BucketPlan, world_sizes: Sequence[int], **options: Any
) -> list[Balance]:
    """Computes the balance of a plan's epoch for several numbers of ranks.

    Args:
        sizes: ``[n, C]`` sizes of the graphs, or a store.
        plan: the buckets.
        world_sizes: numbers of ranks.
        **options: for the batcher, such as ``indices``, ``shuffle`` and ``seed``.
    """
    return [
        balance_of(Batcher(sizes, plan, world_size=ranks, **options).rows(0))
        for ranks in world_sizes
    ]


def _efficiency(rows: IntArray) -> tuple[float, float]:
    if not len(rows):
        return (float("nan"), float("nan"))
    most = rows.max(axis=1)[:, 1:3].sum(axis=0)
    mean = rows.mean(axis=1)[:, 1:3].sum(axis=0)
    shares = np.where(most > 0, mean / np.maximum(most, 1), 1.0)
    return (float(shares[0]), float(shares[1]))
