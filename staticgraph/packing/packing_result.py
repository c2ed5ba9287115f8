"""The result of packing a histogram: patterns of sizes that go together, and how often each occurs.

A pack is one batch's worth of graphs. Packing works on sizes, not on graphs: a *pattern* such as
"two of (30, 62) and nine of (18, 36)" is used for as many packs as there are graphs to fill it, so
that 350,343 graphs become about 600 patterns. Which graph takes which place is drawn afterwards,
again each epoch if desired (:mod:`staticgraph.packing.draw_graphs`).

Limits here are *usable* limits, as in the paper: the rows that real graphs may fill. A
:class:`~staticgraph.sizes.capacity.Capacity` keeps one more node and one more graph for padding,
so a pack of limits (222, 502) with 256 graphs needs a capacity of 223 nodes, 502 edges and 257
graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from staticgraph.errors import GraphTooLarge
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many, how_many_of


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """An assignment of every graph of a histogram to a pack.

    Attributes:
        histogram: what was packed; ``T`` distinct sizes of ``C`` components.
        limits: ``[C]`` int64, the most that a pack may hold of each component.
        max_graphs: how many graphs a pack may hold; no limit where None.
        starts: ``[P + 1]`` int64, where each pattern begins in ``types`` and ``copies``.
        types: ``[S]`` int64, rows of the histogram.
        copies: ``[S]`` int64, how many graphs of that row a pack of this pattern holds.
        counts: ``[P]`` int64, how many packs have each pattern.
        method: how it was found.
        proven: the proven minimum number of packs, from ``effort="best"``; None where only the
            volume bound is known.
    """

    histogram: SizeHistogram
    limits: IntArray
    max_graphs: int | None
    starts: IntArray
    types: IntArray
    copies: IntArray
    counts: IntArray
    method: str = ""
    proven: int | None = None

    @property
    def num_packs(self) -> int:
        """The number of packs."""
        return int(self.counts.sum())

    @property
    def pattern_of_entry(self) -> IntArray:
        """``[S]`` the pattern that each entry of ``types`` belongs to."""
        return np.repeat(np.arange(len(self.counts)), np.diff(self.starts))

    @property
    def loads(self) -> IntArray:
        """``[P, C]`` int64: what one pack of each pattern holds of each component."""
        loads = np.zeros((len(self.counts), self.histogram.sizes.shape[1]), dtype=np.int64)
        np.add.at(
            loads, self.pattern_of_entry, self.copies[:, None] * self.histogram.sizes[self.types]
        )
        return loads

    @property
    def graphs(self) -> IntArray:
        """``[P]`` int64: how many graphs one pack of each pattern holds."""
        graphs = np.zeros(len(self.counts), dtype=np.int64)
        np.add.at(graphs, self.pattern_of_entry, self.copies)
        return graphs

    @property
    def placed(self) -> IntArray:
        """``[T]`` int64: how many graphs of each size the packs hold."""
        placed = np.zeros(len(self.histogram.counts), dtype=np.int64)
        np.add.at(placed, self.types, self.copies * self.counts[self.pattern_of_entry])
        return placed

    @property
    def efficiency(self) -> NDArray[np.float64]:
        """``[C]`` the filled share of each component, over all packs; 1 where the limit is 0."""
        room = self.limits.astype(np.float64) * self.num_packs  # may exceed 64 bits
        return np.where(room > 0, self.histogram.totals / np.maximum(1, room), 1.0)

    @property
    def harmonic_mean(self) -> float:
        """The harmonic mean of the efficiencies (paper, section 2.5)."""
        return harmonic_mean(self.efficiency)

    @property
    def volume_bound(self) -> int:
        """A lower bound on the number of packs, by volume alone."""
        return volume_bound(self.histogram, self.limits, self.max_graphs)

    def check(self) -> None:
        """Checks that no limit is exceeded and no graph is missing or packed twice.

        Raises:
            AssertionError: the packing is wrong, which is a bug in this library.
        """
        whole = np.array_equal(self.placed, self.histogram.counts)
        assert whole, "graphs are missing or packed twice"
        assert (self.loads <= self.limits).all(), "a pack exceeds a limit"
        assert self.max_graphs is None or (self.graphs <= self.max_graphs).all(), "too many graphs"

    def with_counts(self, counts: IntArray) -> Packing:
        """The patterns that are used, ``counts`` ``[P]`` times each."""
        used = counts > 0
        entries = used[self.pattern_of_entry]
        return replace(
            self,
            starts=np.append(0, np.cumsum(np.diff(self.starts)[used])),
            types=self.types[entries],
            copies=self.copies[entries],
            counts=counts[used],
        )

    def join(self, more: Packing, rows: IntArray) -> Packing:
        """These packs and others; ``rows`` are the rows of the other histogram's sizes in ours."""
        return replace(
            self,
            starts=np.concatenate([self.starts, self.starts[-1] + more.starts[1:]]),
            types=np.concatenate([self.types, rows[more.types]]),
            copies=np.concatenate([self.copies, more.copies]),
            counts=np.concatenate([self.counts, more.counts]),
        )

    def to_dict(self) -> dict[str, Any]:
        """A summary in plain numbers, for JSON, without the patterns."""
        named = zip(self.histogram.components, self.efficiency.tolist(), strict=True)
        efficiency = {name.removesuffix("s") + "_efficiency": value for name, value in named}
        return {
            "method": self.method,
            "packs": self.num_packs,
            "patterns": len(self.counts),
            **efficiency,
            "harmonic_mean": self.harmonic_mean,
            "graphs_per_pack": self.histogram.num_graphs / max(1, self.num_packs),
            "max_graphs_in_a_pack": int(self.graphs.max(initial=0)),
            "volume_bound": self.volume_bound,
            **({} if self.proven is None else {"proven_bound": self.proven}),
        }


def harmonic_mean(efficiency: ArrayLike) -> float:
    """The harmonic mean of the components' efficiencies; 0 where any of them is 0."""
    values = np.asarray(efficiency, dtype=np.float64)
    return float(len(values) / (1.0 / values).sum()) if (values > 0).all() else 0.0


def with_graphs(
    histogram: SizeHistogram, limits: IntArray, max_graphs: int | None
) -> tuple[IntArray, IntArray]:
    """Sizes and limits, with the graph count as one more component where it is limited."""
    if max_graphs is None:
        return histogram.sizes, limits
    ones = np.ones(len(histogram.sizes), dtype=np.int64)
    return np.column_stack([histogram.sizes, ones]), np.append(limits, max_graphs)


def part_of(histogram: SizeHistogram, counts: IntArray) -> tuple[SizeHistogram, IntArray]:
    """``counts`` ``[T]`` graphs of each size, without sizes of none, and their rows ``[T']``."""
    rows = np.flatnonzero(counts)
    return SizeHistogram(histogram.sizes[rows], counts[rows], histogram.components), rows


def volumes(
    histogram: SizeHistogram, limits: IntArray, max_graphs: int | None = None
) -> NDArray[np.float64]:
    """``[C]`` (``[C + 1]`` with a limit on graphs) packs that each component alone would fill."""
    sizes, bounds = with_graphs(histogram, limits, max_graphs)
    return histogram.counts @ sizes / np.maximum(1, bounds)


def volume_bound(histogram: SizeHistogram, limits: ArrayLike, max_graphs: int | None = None) -> int:
    """The least number of packs by volume: the fullest component, rounded up."""
    sizes, bounds = with_graphs(histogram, np.asarray(limits, dtype=np.int64), max_graphs)
    least = -(-(histogram.counts @ sizes) // np.maximum(1, bounds))
    return max(int(least.max()), min(1, histogram.num_graphs))


def checked_limits(histogram: SizeHistogram, limits: ArrayLike, max_graphs: int | None) -> IntArray:
    """``[C]`` int64 limits, checked so that every graph of the histogram fits by itself.

    Raises:
        ValueError: the numbers of limits and components differ, or ``max_graphs`` is below 1.
        GraphTooLarge: a size exceeds a limit; the message names it.
    """
    bounds = np.asarray(limits, dtype=np.int64)
    names = histogram.components
    if bounds.shape != (len(names),):
        raise ValueError(
            f"{how_many(bounds.size, 'limit')} for the {len(names)} components "
            f"{', '.join(names)}: give one limit for each"
        )
    if max_graphs is not None and max_graphs < 1:
        raise ValueError(f"max_graphs={max_graphs} must be at least 1")
    over = np.argwhere(histogram.sizes > bounds)
    if len(over):
        row, column = over[0].tolist()
        size = ", ".join(
            how_many_of(value, name)
            for value, name in zip(histogram.sizes[row], names, strict=True)
        )
        graphs = histogram.counts[row]
        raise GraphTooLarge(
            f"{how_many(graphs, 'graph')} {'has' if graphs == 1 else 'have'} {size}; a pack holds "
            f"at most {how_many_of(bounds[column], names[column])}: raise the limit to "
            f"{histogram.maxima[column]:,}, the largest there is"
        )
    return bounds
