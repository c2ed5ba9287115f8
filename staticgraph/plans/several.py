"""Several capacities: which graphs go to which, so that an epoch costs least.

The problem: one capacity must hold the largest graph, and under dense attention every graph pays
for the square of that size. A few huge graphs make all batches huge. The idea: divide the graphs by
their number of nodes into K classes with one capacity each, and choose the cuts by dynamic
programming over an estimate of each class's cost; then actually pack each class and report the
resulting cost, for K = 1, 2, ... so that the knee is visible.

The cost of an epoch is the sum over buckets of packs times
:class:`~staticgraph.plans.cost.StepCost`, subject to a memory predicate. A graph belongs to the
capacity with the smallest ``max_graph_nodes`` that holds it, so a cut is a value of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from staticgraph.packing.coarse import coarsened
from staticgraph.packing.packing_result import Packing
from staticgraph.plans.cost import StepCost, cheapest_classes
from staticgraph.plans.limits import limits_for_graphs
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

# Values of M considered as cuts: spread evenly by share of the graphs and by ratio.
CANDIDATES = 40
# How many graphs a pack of a class may hold, as shares of the requested number.
SHARES = (1.0, 0.5, 0.25, 0.125, 1 / 16, 1 / 32, 1 / 64)
# The space that a packer leaves unfilled, in the estimate.
LEFT_OPEN = 1.01
# The last pack of a class is half empty on average, so a few large packs are worse than many.
LAST_PACK = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class BucketChoice:
    """One class of graphs and its capacity.

    Attributes:
        capacity: physical rows.
        packing: its graphs, packed at the usable limits of the capacity.
        step_cost: the cost of one step at the capacity.
    """

    capacity: Capacity
    packing: Packing
    step_cost: float

    @property
    def cost(self) -> float:
        """The cost of all its steps in an epoch."""
        return self.step_cost * self.packing.num_packs


@dataclass(frozen=True, slots=True, eq=False)
class SeveralChoice:
    """The buckets for one K, smallest graphs first."""

    buckets: tuple[BucketChoice, ...]
    real: tuple[float, ...] = (1.0, 1.0)
    """Of nodes and edges that the packings count, the share that is no rounding."""

    @property
    def cost(self) -> float:
        """The cost of an epoch."""
        return sum(bucket.cost for bucket in self.buckets)

    def efficiency(self) -> tuple[float, float, float]:
        """Real rows over physical rows of nodes, edges and graphs, over an epoch."""
        real, rows = np.zeros(3), np.zeros(3)
        for bucket in self.buckets:
            histogram, c = bucket.packing.histogram, bucket.capacity
            real += [*(histogram.totals[:2] * self.real), histogram.num_graphs]
            rows += np.array([c.nodes, c.edges, c.graphs]) * bucket.packing.num_packs
        nodes, edges, graphs = (real / np.maximum(1, rows)).tolist()
        return nodes, edges, graphs


def choose_buckets(
    histogram: SizeHistogram,
    most: int,
    *,
    graphs: int = 128,
    cost: StepCost | None = None,
    fits: Callable[[Capacity], bool] | None = None,
) -> list[SeveralChoice]:
    """The best K capacities for K = 1 .. ``most``.

    Args:
        histogram: the sizes.
        most: the largest K.
        graphs: the approximate maximum of graphs per pack; a class of large graphs may get fewer.
        cost: the cost of a step; a guess where None.
        fits: whether a capacity fits the device; every capacity where None.

    Returns:
        One choice for each K up to the number of possible classes; the cost never rises with K.
        With very many distinct sizes, the packings are of the rounded sizes
        (:mod:`staticgraph.packing.coarse`).

    Raises:
        ValueError: no graphs, or the largest graph fits the device in no class.
    """
    if most < 1 or not histogram.num_graphs:
        raise ValueError(
            f"{how_many(most, 'bucket')} for {how_many(histogram.num_graphs, 'graph')}: one of "
            "each at least"
        )
    price = cost or StepCost()
    fine, histogram = histogram, coarsened(histogram).histogram
    nodes, edges = (fine.totals[:2] / np.maximum(1, histogram.totals[:2])).tolist()
    cuts = _cuts(histogram.sizes[:, 0], histogram.counts)
    costs, shares = _segment_costs(histogram, cuts, graphs, price, fits)
    if not np.isfinite(costs[:, -1]).any():
        raise ValueError(
            f"the largest graph ({how_many(histogram.maxima[0], 'node')}) fits the device in no "
            "bucket: give more memory, or leave it out with oversize='skip'"
        )
    choices: list[SeveralChoice] = []
    for path in cheapest_classes(costs, most):
        buckets = [
            _bucket(_between(histogram, cuts[i], cuts[j]), graphs * shares[i, j], price)
            for i, j in path
        ]
        choice = SeveralChoice(tuple(buckets), (nodes or 1.0, edges or 1.0))
        better = not choices or choice.cost < choices[-1].cost
        choices.append(choice if better else choices[-1])
    return choices


def knee(choices: list[SeveralChoice], gain: float = 0.05) -> int:
    """The index of the last choice that costs less by at least ``gain`` than the last such one."""
    chosen = 0
    for k in range(1, len(choices)):
        if choices[k].cost <= (1.0 - gain) * choices[chosen].cost:
            chosen = k
    return chosen


def _cuts(nodes: IntArray, counts: IntArray) -> IntArray:
    """``[C + 1]`` ascending node counts; a class is ``cuts[i] < nodes <= cuts[j]``."""
    order = np.argsort(nodes, kind="stable")
    reached = np.cumsum(counts[order]) / counts.sum()
    shares = np.linspace(0.05, 1.0, CANDIDATES // 2)
    by_share = nodes[order][np.minimum(np.searchsorted(reached, shares), len(nodes) - 1)]
    low, high = max(1, int(nodes.min())), max(1, int(nodes.max()))
    by_ratio = np.geomspace(low, high, CANDIDATES // 2).astype(np.int64)
    present = np.unique(nodes)
    below = present[np.maximum(0, np.searchsorted(present, by_ratio, side="right") - 1)]
    return np.unique(np.concatenate([[-1], by_share, below, [nodes.max()]]))


def _between(histogram: SizeHistogram, low: int, high: int) -> SizeHistogram:
    """The graphs with ``low < nodes <= high``."""
    keep = (histogram.sizes[:, 0] > low) & (histogram.sizes[:, 0] <= high)
    return SizeHistogram(histogram.sizes[keep], histogram.counts[keep], histogram.components)


def _segment_costs(
    histogram: SizeHistogram,
    cuts: IntArray,
    graphs: int,
    price: StepCost,
    fits: Callable[[Capacity], bool] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """``[C + 1, C + 1]`` estimated cost of each class, and its share of graphs per pack."""
    size = len(cuts)
    costs, shares = np.full((size, size), np.inf), np.ones((size, size))
    bands = [_between(histogram, *pair) for pair in pairwise(cuts.tolist())]
    numbers = np.array([band.num_graphs for band in bands])
    totals, maxima = (np.array([getattr(b, name) for b in bands]) for name in ("totals", "maxima"))
    for i in range(size):
        for j in range(i + 1, size):
            part = _Part(int(numbers[i:j].sum()), totals[i:j].sum(axis=0), maxima[i:j].max(axis=0))
            if not part.num_graphs:
                continue
            for share in SHARES:
                capacity, packs = _estimate(part, max(1.0, graphs * share))
                estimate = price.of(capacity) * (packs + LAST_PACK)
                if estimate < costs[i, j] and (fits is None or fits(capacity)):
                    costs[i, j], shares[i, j] = estimate, share
                if graphs * share <= 1:
                    break
    return costs, shares


class _Part(NamedTuple):
    """The data of a class that an estimate needs: graph count, ``[C]`` totals and maxima."""

    num_graphs: int
    totals: IntArray
    maxima: IntArray


def _estimate(part: _Part, graphs: float) -> tuple[Capacity, int]:
    """The approximate capacity and number of packs of a class at ``graphs`` graphs per pack."""
    packs = max(1, round(part.num_graphs / graphs))
    limits = np.maximum(np.ceil(LEFT_OPEN * part.totals / packs), part.maxima)
    slots = -(-part.num_graphs // packs)
    packs = max(int(np.ceil(np.max(LEFT_OPEN * part.totals / np.maximum(1, limits)))), 1)
    packs = max(packs, -(-part.num_graphs // (2 * slots)))
    largest = max(1, int(part.maxima[0]))
    nodes, edges = max(int(limits[0]), largest), int(limits[1])
    return Capacity.distinct(nodes + 1, edges, slots + 1, largest), packs


def _bucket(part: SizeHistogram, graphs: float, price: StepCost) -> BucketChoice:
    """Actually packs a class."""
    choice = limits_for_graphs(part, max(1, round(graphs)))
    return BucketChoice(choice.capacity, choice.packing, price.of(choice.capacity))
