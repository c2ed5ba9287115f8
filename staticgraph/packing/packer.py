"""The front door of packing: a histogram and limits to as few packs as the effort allows.

No one way of packing is best everywhere: filling pack by pack wins at four to ten graphs a pack,
best fit over all open packs at two or three, an even deal and swaps above. So all of them are run,
which is cheap, and the best is kept.

The invariant: up to :data:`~staticgraph.packing.coarse.MOST_SIZES` distinct sizes, never more packs
than the published listing makes with the best of its measures.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from staticgraph.packing.coarse import coarsened
from staticgraph.packing.fill import fill_histogram
from staticgraph.packing.listing import listings
from staticgraph.packing.pack import Packing, checked_limits, volume_bound
from staticgraph.packing.swap import fewer_by_swaps
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray


def pack_histogram(
    histogram: SizeHistogram, limits: ArrayLike, *, max_graphs: int | None = None
) -> Packing:
    """Packs all graphs of a histogram into as few packs as it can.

    Of very many distinct sizes those that are nearly alike are packed as if they were the largest
    of them (:mod:`staticgraph.packing.coarse`); ``method`` says what that costs.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits (a capacity has one node and one graph more).
        max_graphs: how many graphs a pack may hold; no limit where None.

    Raises:
        GraphTooLarge: a size exceeds a limit alone.
        ValueError: as many limits as components are needed, and ``max_graphs`` of at least 1.
    """
    bounds = checked_limits(histogram, limits, max_graphs)
    coarse = coarsened(histogram)
    return coarse.expanded(_fast(coarse.histogram, bounds, max_graphs))


def _fast(histogram: SizeHistogram, limits: IntArray, max_graphs: int | None) -> Packing:
    """The best of filling, swaps and the listing."""
    best = fill_histogram(histogram, limits, max_graphs=max_graphs)
    least = volume_bound(histogram, limits, max_graphs)
    for found in listings(histogram, limits, max_graphs):
        if best.num_packs <= least:
            break
        if found.num_packs < best.num_packs:
            best = fewer_by_swaps(found)
    return best
