"""The entry point of packing: packs a histogram into as few packs as the effort allows.

No single method is best everywhere: filling pack by pack wins at four to ten graphs per pack, best
fit over all open packs at two or three, an even deal above; exchanges improve all of them. So
``effort="fast"`` runs all of them, which takes milliseconds, and keeps the best; ``effort="best"``
continues from there with exchanges and linear programs until it reaches a bound or the time limit.

The invariant: up to :data:`~staticgraph.packing.coarse.MOST_SIZES` distinct sizes, the result never
has more packs than the published listing with the best of its measures; and ``best`` never has more
than ``fast``.
"""

from __future__ import annotations

from typing import Literal

from numpy.typing import ArrayLike

from staticgraph.packing.best import improve
from staticgraph.packing.coarse import coarsened
from staticgraph.packing.correction import fewer_by_correction
from staticgraph.packing.fill import fill_histogram
from staticgraph.packing.listing import listings
from staticgraph.packing.pack import Packing, checked_limits, volume_bound
from staticgraph.packing.repair import fewer_by_repair
from staticgraph.packing.sample import fewer_by_sample
from staticgraph.packing.swap import REPAIRED_GRAPHS, fewer_by_swaps
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

PackingEffort = Literal["fast", "best"]
EFFORTS = ("fast", "best")
# Seconds that ``effort="best"`` may take.
TIME_LIMIT = 10.0
# ``fast`` repairs packs of this many graphs, where there are not too many of them, and looks at
# this many pairs of graphs, about 25 ms; with fewer graphs per pack it repairs a sample, unless
# most graphs are alone.
FEW_GRAPHS, MANY_GRAPHS = 5, 30
PAIRS = 1_600_000
ALONE = 1.5


def pack_histogram(
    histogram: SizeHistogram,
    limits: ArrayLike,
    *,
    max_graphs: int | None = None,
    effort: PackingEffort = "fast",
    time_limit: float = TIME_LIMIT,
    progress: bool = False,
) -> Packing:
    """Packs all graphs of a histogram into as few packs as it can.

    With very many distinct sizes, those that are nearly equal are packed as if they were the
    largest of them (:mod:`staticgraph.packing.coarse`); ``method`` says what that costs.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits (a capacity has one node and one graph more).
        max_graphs: how many graphs a pack may hold; no limit where None.
        effort: ``fast`` takes milliseconds and always gives the same packs; ``best`` uses column
            generation for seconds, and is proven optimal or nearly so where a pack holds up to
            about ten graphs (``Packing.proven``); it needs SciPy. If stopped by the time limit, its
            result depends on the machine's speed.
        time_limit: seconds for ``best``; work already under way is finished.
        progress: whether ``best`` shows its progress on stderr.

    Raises:
        GraphTooLarge: a single size exceeds a limit.
        ImportError: ``best`` without SciPy; the message says how to get it.
        ValueError: the numbers of limits and components differ, ``max_graphs`` is below 1, the
            effort is unknown, or ``time_limit`` is not above 0.
    """
    if effort not in EFFORTS:
        raise ValueError(f"effort={effort!r}: choose one of {', '.join(EFFORTS)}")
    if not time_limit > 0:
        raise ValueError(f"time_limit={time_limit} seconds must be above 0")
    bounds = checked_limits(histogram, limits, max_graphs)
    coarse = coarsened(histogram)
    packing = _fast(coarse.histogram, bounds, max_graphs)
    if effort == "best":
        packing = improve(packing, _fast, time_limit=time_limit, progress=progress)
    return coarse.expanded(packing)


def _fast(histogram: SizeHistogram, limits: IntArray, max_graphs: int | None) -> Packing:
    """The best of filling, swaps and the listing, improved by corrections and exchanges."""
    best = fill_histogram(histogram, limits, max_graphs=max_graphs)
    least = volume_bound(histogram, limits, max_graphs)
    for found in listings(histogram, limits, max_graphs):
        if best.num_packs <= least:
            break
        if found.num_packs < best.num_packs:
            best = fewer_by_swaps(found)
    best = fewer_by_correction(best)
    graphs = histogram.num_graphs
    if best.num_packs <= least or graphs > MANY_GRAPHS * best.num_packs:
        return best
    if graphs < FEW_GRAPHS * best.num_packs:
        return fewer_by_sample(best) if graphs > ALONE * best.num_packs else best
    return fewer_by_repair(best, least, pairs=PAIRS) if graphs <= REPAIRED_GRAPHS else best
