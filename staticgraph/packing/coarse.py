"""Rounding very many distinct sizes up to a few thousand.

The problem: packing scans the distinct sizes again and again, so its time grows with the square of
their number: 80,000 take half a minute, a million an hour. The idea: put sizes that differ by a
small share of themselves and of the mean into one box, and pack every graph of a box at the box's
largest counts. A pack then never holds more than it appears to, so every limit is kept; the cost is
the rounding, :attr:`Coarse.loss`, in theory below twice ``exp(step) - 1`` in every component and in
practice about :attr:`Coarse.step`. Afterwards the graphs themselves take the places of their boxes,
so that a packing is of the original sizes, and its efficiency is the true one.

The invariant: up to :data:`MOST_SIZES` distinct sizes nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.packing.packing_result import Packing, harmonic_mean
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import MOST_ROWS, IntArray, distinct_rows

# Distinct sizes that are packed without rounding: a fraction of a second. For nodes and edges
# spread evenly and independently, this many boxes lose about one percent.
MOST_SIZES = 8192
# Box widths that are tried: from 0.1%, each an eighth larger than the previous.
STEPS = 0.001 * 1.125 ** np.arange(100)


@dataclass(frozen=True, slots=True, eq=False)
class Coarse:
    """A histogram and its rounded substitute for packing.

    Attributes:
        fine: the original sizes.
        histogram: at most about :data:`MOST_SIZES` sizes that hold them; ``fine`` itself where
            there are no more.
        box: ``[T]`` int64, for each row of ``fine`` the row of ``histogram`` that holds it.
        step: the width of a box at a size, as a share of the sum of that size and the mean; 0 where
            nothing is rounded.
    """

    fine: SizeHistogram
    histogram: SizeHistogram
    box: IntArray
    step: float

    @property
    def loss(self) -> float:
        """Rows added by rounding, as a share of all, for the component where it is largest."""
        if self.histogram is self.fine:
            return 0.0
        return float((self.histogram.totals / np.maximum(1, self.fine.totals)).max() - 1.0)

    def filled(self, packing: Packing) -> float:
        """The harmonic mean of a packing's efficiencies, counting the original sizes.

        Args:
            packing: of :attr:`histogram`.
        """
        room = packing.limits.astype(np.float64) * packing.num_packs
        real = self.fine.totals / np.maximum(1, room)
        return harmonic_mean(np.where(room > 0, real, 1.0))

    def expanded(self, packing: Packing) -> Packing:
        """Converts a packing of :attr:`histogram` to :attr:`fine`: same packs, same places."""
        if self.histogram is self.fine:
            return packing
        by_box = np.argsort(self.box, kind="stable")
        bounds = np.searchsorted(self.box[by_box], np.arange(len(self.histogram.counts) + 1))
        patterns = place_members(
            packing.starts,
            packing.types,
            packing.copies,
            packing.counts,
            by_box,
            bounds.astype(np.int64),
            self.fine.counts[by_box],
        )
        method = f"{packing.method}, sizes rounded up by {self.loss:.2%}"
        return Packing(self.fine, packing.limits, packing.max_graphs, *patterns, method)


def coarsened(histogram: SizeHistogram, most: int | None = None) -> Coarse:
    """Uses the finest boxes whose number is at most ``most`` (:data:`MOST_SIZES` where None)."""
    most = most or MOST_SIZES
    sizes, counts = histogram.sizes, histogram.counts
    if len(counts) <= most:
        return Coarse(histogram, histogram, np.arange(len(counts)), 0.0)
    # The logarithm of one plus the multiple of the mean: boxes of equal width in it are wide where
    # the sizes are large.
    places = np.log1p(sizes / np.maximum(histogram.totals / histogram.num_graphs, 1e-9))
    low, high = 0, len(STEPS) - 1
    while low < high:
        middle = (low + high) // 2
        if len(np.unique(_keys(places, float(STEPS[middle])))) <= most:
            high = middle
        else:
            low = middle + 1
    step = float(STEPS[low])
    _, member = np.unique(_keys(places, step), return_inverse=True)
    largest = np.zeros((int(member.max()) + 1, sizes.shape[1]), np.int64)
    graphs = np.zeros(len(largest), np.int64)
    _gather(member, sizes, counts, largest, graphs)
    order = np.lexsort(largest.T[::-1])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    rounded = SizeHistogram(largest[order], graphs[order], histogram.components)
    return Coarse(histogram, rounded, place[member], step)


def _keys(places: NDArray[np.float64], step: float) -> IntArray:
    """``[T]`` one number per size, equal where the boxes along all components are."""
    boxes = np.floor(places / step).astype(np.int64)
    spans = boxes.max(axis=0) + 1
    if np.prod(spans.astype(np.float64)) >= MOST_ROWS:
        return distinct_rows(boxes)[1]
    return np.asarray(np.ravel_multi_index(tuple(boxes.T), tuple(spans.tolist())), np.int64)


@loop
def _gather(
    member: IntArray, sizes: IntArray, counts: IntArray, largest: IntArray, graphs: IntArray
) -> None:
    """Computes the largest member of each box per component, and its number of graphs."""
    for t in range(len(member)):
        m = member[t]
        graphs[m] += counts[t]
        for c in range(sizes.shape[1]):
            largest[m, c] = max(largest[m, c], sizes[t, c])


@loop
def place_members(
    starts: IntArray,
    types: IntArray,
    copies: IntArray,
    counts: IntArray,
    by_box: IntArray,
    bounds: IntArray,
    left: IntArray,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Fills each place of a box with its next member; identical packs stay one pattern.

    Places of a box without members stay empty, and a pack without graphs is left out.

    Args:
        starts, types, copies, counts: a packing of boxes.
        by_box: ``[T]`` members, box by box.
        bounds: ``[boxes + 1]`` where each box's members begin in ``by_box``.
        left: ``[T]`` how many graphs each of ``by_box`` has; afterwards, those in no pack.
    """
    at = bounds[:-1].copy()
    new_starts = [0]
    new_types = [0 for _ in range(0)]
    new_copies = [0 for _ in range(0)]
    repeats = [0 for _ in range(0)]
    for p in range(len(counts)):
        remaining = counts[p]
        while remaining > 0:
            # As many packs as the current members can fill alike; else one of mixed members.
            alike = remaining
            for s in range(starts[p], starts[p + 1]):
                alike = min(alike, left[at[types[s]]] // copies[s])
            times = max(1, alike)
            for s in range(starts[p], starts[p + 1]):
                box, wanted = types[s], copies[s] * times
                while wanted > 0:
                    k = at[box]
                    taken = min(wanted, left[k])
                    if taken == 0:
                        break
                    new_types.append(int(by_box[k]))
                    new_copies.append(taken // times)
                    left[k] -= taken
                    wanted -= taken
                    if left[k] == 0 and k + 1 < bounds[box + 1]:
                        at[box] += 1
            if len(new_types) == new_starts[-1]:
                break
            repeats.append(times)
            new_starts.append(len(new_types))
            remaining -= times
    return np.array(new_starts), np.array(new_types), np.array(new_copies), np.array(repeats)
