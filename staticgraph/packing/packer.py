"""The front door of packing: a histogram and limits to as few packs as the effort allows.

No one way of packing is best everywhere: filling pack by pack wins at four to ten graphs a pack,
best fit over all open packs at two or three, an even deal above; exchanges help all of them. So
``effort="fast"`` runs all of them, which takes milliseconds, and keeps the best; ``effort="best"``
goes on from there with exchanges and linear programs until a bound is reached or the time is up.

The invariant: up to :data:`~staticgraph.packing.coarse.MOST_SIZES` distinct sizes, never more packs
than the published listing makes with the best of its measures; and ``best`` never more than
``fast``.
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
# ``fast`` repairs packs of so many graphs, where there are not too many of them, and looks at so
# many pairs of graphs, about 25 ms; of packs of fewer graphs it repairs a sample, unless most
# graphs are alone.
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

    Of very many distinct sizes those that are nearly alike are packed as if they were the largest
    of them (:mod:`staticgraph.packing.coarse`); ``method`` says what that costs.

    Args:
        histogram: the sizes.
        limits: ``[C]`` usable limits (a capacity has one node and one graph more).
        max_graphs: how many graphs a pack may hold; no limit where None.
        effort: ``fast`` in milliseconds, always the same packs; ``best`` by column generation in
            seconds, proven best or nearly so where a pack holds up to ten graphs or so
            (``Packing.proven``); it needs SciPy. Stopped by the time limit, what it finds depends
            on the machine's speed.
        time_limit: seconds for ``best``; what is under way is finished.
        progress: whether ``best`` shows how far it is, on stderr.

    Raises:
        GraphTooLarge: a size exceeds a limit alone.
        ImportError: ``best`` without SciPy; the message says how to get it.
        ValueError: as many limits as components are needed, and ``max_graphs`` of at least 1; no
            such effort; ``time_limit`` is not above 0.
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
    """The best of filling, swaps and the listing, with what corrections and exchanges gain."""
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
