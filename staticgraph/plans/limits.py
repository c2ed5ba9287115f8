"""Choosing the limits of a pack from the sizes and a target, instead of trying a grid by hand.

The paper (section 2.5) packs at every pair of limits of a grid and looks for the best harmonic mean
of the efficiencies; choosing the limits automatically is left as future work. Two observations make
it possible. Both components fill up together only if the limits have the ratio of the totals. And
efficiency is totals over (packs times limits), so it is better to choose the *number of packs* and
let the limits follow: the smallest limits that P packs can have are the totals over P, and the
question is how little above them the packer succeeds. That search is one-dimensional and needs no
grid.

Limits are usable limits; a capacity has one node and one graph more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from staticgraph.packing.coarse import coarsened
from staticgraph.packing.fill import QUICK, Effort, fill_histogram
from staticgraph.packing.packing_result import Packing, harmonic_mean
from staticgraph.packing.swap import MIN_GRAPHS, pack_by_swaps
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

# The excess of the limits over totals / packs, tried in ascending order.
EXCESS = (0.0, 0.001, 0.002, 0.004, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.12)
# The harmonic mean of the efficiencies that limits for a number of graphs are to reach.
FILLED = 0.99
# Packs hold at most this many times the requested graphs; otherwise a pack of only the smallest
# graphs would decide how many graph slots every batch carries.
GRAPHS_OVER_MEAN = 2.0
# For filling a map, where the location of the ridge matters and not the last pack.
SKETCH = (Effort(1, 32, 1),)


@dataclass(frozen=True, slots=True, eq=False)
class LimitsChoice:
    """Limits found for a target.

    Attributes:
        packing: the packing at these limits.
        reached: whether the target efficiency was reached.
        reason: why it was not reached, or how the limits were found.
    """

    packing: Packing
    reached: bool
    reason: str

    @property
    def limits(self) -> IntArray:
        """``[C]`` usable limits."""
        return self.packing.limits

    @property
    def capacity(self) -> Capacity:
        """The physical capacity for them: one node and one graph more, all three distinct."""
        largest = max(1, int(self.packing.histogram.maxima[0]))
        nodes = max(int(self.limits[0]), largest) + 1
        graphs = int(self.packing.graphs.max(initial=1)) + 1
        return Capacity.distinct(nodes, int(self.limits[1]), graphs, largest)


@dataclass(frozen=True, slots=True, eq=False)
class EfficiencyMap:
    """The harmonic mean of the efficiencies over a grid of limits (paper, figure 5).

    Attributes:
        nodes: ``[A]`` limits on nodes.
        edges: ``[B]`` limits on edges.
        harmonic: ``[A, B]`` float64; NaN where a graph does not fit.
    """

    nodes: IntArray
    edges: IntArray
    harmonic: NDArray[np.float64]

    @property
    def best(self) -> tuple[int, int, float]:
        """Node limit, edge limit and harmonic mean at the best point."""
        a, b = np.unravel_index(np.nanargmax(self.harmonic), self.harmonic.shape)
        return int(self.nodes[a]), int(self.edges[b]), float(self.harmonic[a, b])


def efficiency_map(
    histogram: SizeHistogram,
    nodes: Iterable[int],
    edges: Iterable[int],
    *,
    max_graphs: int | None = None,
) -> EfficiencyMap:
    """Packs at every pair of limits."""
    rows, columns = np.array(list(nodes), np.int64), np.array(list(edges), np.int64)
    harmonic = np.full((len(rows), len(columns)), np.nan)
    least, coarse = histogram.maxima, coarsened(histogram)
    for a, node_limit in enumerate(rows):
        for b, edge_limit in enumerate(columns):
            if node_limit >= least[0] and edge_limit >= least[1]:
                limits = [node_limit, edge_limit]
                packing = fill_histogram(
                    coarse.histogram, limits, max_graphs=max_graphs, efforts=SKETCH
                )
                harmonic[a, b] = coarse.filled(packing)
    return EfficiencyMap(rows, columns, harmonic)


def limits_for_graphs(histogram: SizeHistogram, graphs: int) -> LimitsChoice:
    """Finds the smallest limits for packs of about ``graphs`` graphs that are :data:`FILLED`.

    Args:
        histogram: the sizes, of at least one graph.
        graphs: how many graphs a pack should hold on average, at least 1.
    """
    most = int(np.ceil(GRAPHS_OVER_MEAN * graphs))
    packs = max(1, round(histogram.num_graphs / graphs))
    coarse = coarsened(histogram)
    rounded, maxima = coarse.histogram, histogram.maxima
    best, filled = fill_histogram(rounded, np.maximum(rounded.totals, maxima)), -1.0
    swaps = partial(pack_by_swaps, rounded, packs=packs, max_graphs=most)
    fills = partial(fill_histogram, rounded, max_graphs=most)
    for method in (swaps, fills) if graphs >= MIN_GRAPHS else (fills,):
        for excess in EXCESS:
            mean = np.ceil(rounded.totals / packs * (1.0 + excess)).astype(np.int64)
            packing = method(limits=np.maximum(mean, maxima))
            if packing is None:
                continue
            if coarse.filled(packing) > filled:
                best, filled = packing, coarse.filled(packing)
            if filled >= FILLED or method is swaps:
                break
        if filled >= FILLED:
            break
    best, how = coarse.expanded(best), f"limits over the mean of {how_many(packs, 'pack')}"
    reached = filled >= FILLED
    return LimitsChoice(best, reached, how if reached else _why_not(best, FILLED))


def limits_for_efficiency(
    histogram: SizeHistogram,
    efficiency: float = 0.99,
    *,
    max_graphs: int | None = None,
    steps: int = 400,
) -> LimitsChoice:
    """Finds the smallest limits that reach an efficiency, however few graphs a pack then holds.

    Node limits are tried from the largest graph upwards, each with edge limits around the ratio of
    the totals.

    Raises:
        ValueError: no graphs, or an efficiency that is not between 0 and 1.
    """
    if not 0 < efficiency < 1 or not histogram.num_graphs:
        raise ValueError(f"efficiency={efficiency} must lie between 0 and 1, over some graphs")
    coarse = coarsened(histogram)
    ratio = histogram.totals[1] / max(1, histogram.totals[0])
    grain = max(1, int(np.gcd.reduce(histogram.sizes[:, 1])))
    pack = partial(fill_histogram, max_graphs=max_graphs, efforts=QUICK)
    best: Packing | None = None
    node_limit = int(max(1, histogram.maxima[0]))
    for _ in range(steps):
        for around in (0.98, 1.0, 1.02, 1.05):
            edges = int(np.ceil(node_limit * ratio * around / grain)) * grain
            limits = np.array([node_limit, max(edges, histogram.maxima[1])])
            if harmonic_mean(_at_best(histogram, limits)) < efficiency:
                continue
            packing = pack(coarse.histogram, limits)
            if best is None or coarse.filled(packing) > coarse.filled(best):
                best = packing
            if coarse.filled(packing) >= efficiency:
                why = "the smallest node limit that reaches it"
                return LimitsChoice(coarse.expanded(packing), True, why)
        if node_limit > histogram.totals[0]:
            break
        node_limit = max(node_limit + 1, int(node_limit * 1.02))
    best = pack(histogram, histogram.maxima) if best is None else coarse.expanded(best)
    return LimitsChoice(best, False, _why_not(best, efficiency))


def _at_best(histogram: SizeHistogram, limits: IntArray) -> NDArray[np.float64]:
    """``[C]`` upper bounds on the efficiencies of any packing at these limits."""
    totals = histogram.totals
    packs = max(1, int(np.max(-(-totals // np.maximum(1, limits)))))
    return totals / np.maximum(1, packs * limits.astype(np.float64))


def _why_not(best: Packing, efficiency: float) -> str:
    """What keeps the efficiency down, in words."""
    histogram, packs = best.histogram, how_many(best.num_packs, "pack")
    mean = histogram.totals / max(1, best.num_packs)
    reached = f"{best.harmonic_mean:.2%} reached of {efficiency:.2%}"
    for name, most, average in zip(histogram.components, histogram.maxima, mean, strict=True):
        if most > 1.02 * average:
            return (
                f"{reached}: the largest graph alone has {most} {name}, the mean pack "
                f"{average:.0f}, so every pack is as large as that graph: ask for more graphs a "
                "pack, or for several buckets"
            )
    if best.num_packs < 4:
        return f"{reached}: only {packs}, so one graph more or less is much: {best.method}"
    return f"{reached}: the sizes do not add up better at {packs}"
