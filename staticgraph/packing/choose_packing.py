"""The entry point of packing: packs a histogram into as few packs as the effort allows.

No single method is best everywhere: filling pack by pack wins at four to ten graphs per pack, an
even deal above, corrections of the sizes' values and exchanges in a sample of the packs at two or
three. ``effort="fast"`` runs those that apply, which takes milliseconds; ``effort="best"``
continues from there with exchanges and linear programs until it reaches a bound or the time limit.

*Corrections*: the filler takes the largest graphs first and has a poor choice for the last packs.
By sequential value correction (Mukhacheva et al. 2000; Belov and Scheithauer 2007, "Setup and
open-stacks minimization in one-dimensional stock cutting") a size's value is its share of a pack
divided by how full its packs were, so unused space is charged to the sizes in that pack; the next
run fills by these values.

*A sample*: exchanges (:mod:`staticgraph.packing.repair`) find better packs, but not among a hundred
thousand graphs in milliseconds. That many graphs have few distinct sizes, so most patterns are used
many times. A share of each pattern's packs is taken, a few thousand graphs in total; the result of
the exchanges is repeated as often as the share fits into the whole.

The invariants: runs and pairs are counted, not timed, so the same histogram gives the same packs on
every machine; no step has more packs than the one before, nor ``best`` more than ``fast``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.packing.best import improve
from staticgraph.packing.coarse import coarsened
from staticgraph.packing.fill import (
    component_weights,
    fill_by_worth,
    fill_histogram,
)
from staticgraph.packing.packing_result import Packing, checked_limits, part_of, with_graphs
from staticgraph.packing.repair import fewer_by_repair
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
REPAIRED_GRAPHS = 50_000
PAIRS = 1_600_000
ALONE = 1.5
# The most runs, and the most sizes squared over all of them: about 20 ms. PCQM4Mv2 at 2.5 graphs
# per pack is 1.1% over the bound after 40 runs and 0.4% after 150.
RUNS = 150
WORK = 1_500_000
# Graphs per pack from which exchanges gain more (:func:`fewer_by_sample`), and the most runs there.
MORE_GRAPHS, FEWER_RUNS = 2.7, 15
# Above this many graphs per pack the swaps are better.
MOST_CORRECTED = 6
# The weight of the last run in a value, and an exponent that favors large graphs beyond their
# share.
LEARNED = 0.8
LARGE_FIRST = 1.03
SHARPNESS = 2.0
# The approximate graphs of a sample; pairs of graphs that its exchanges look at, about 15 ms.
SAMPLE_GRAPHS = 2000
SAMPLE_PAIRS = 800_000
# Attempts are limited so that hopeless ones end early: the share of the packs removed at once, and
# the share of the pairs per attempt.
AT_ONCE = 0.01
EACH = 0.25


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
    """Filling and swaps, improved by corrections and exchanges."""
    best = fewer_by_correction(fill_histogram(histogram, limits, max_graphs=max_graphs))
    least, graphs = best.volume_bound, histogram.num_graphs
    if best.num_packs <= least or graphs > MANY_GRAPHS * best.num_packs:
        return best
    if graphs < FEW_GRAPHS * best.num_packs:
        return fewer_by_sample(best) if graphs > ALONE * best.num_packs else best
    return fewer_by_repair(best, least, pairs=PAIRS) if graphs <= REPAIRED_GRAPHS else best


def fewer_by_correction(best: Packing) -> Packing:
    """Returns a packing with fewer packs than ``best`` where a run finds one, else ``best``."""
    histogram, limits, max_graphs = best.histogram, best.limits, best.max_graphs
    sizes = len(histogram.counts)
    if not sizes or histogram.num_graphs > MOST_CORRECTED * best.num_packs:
        return best
    weights = component_weights(histogram, limits, max_graphs, SHARPNESS)
    rows, bounds = with_graphs(histogram, limits, max_graphs)
    share = (rows / np.maximum(1, bounds)) @ weights / max(weights.sum(), 1e-12)
    value = share**LARGE_FIRST
    runs = RUNS if histogram.num_graphs < MORE_GRAPHS * best.num_packs else FEWER_RUNS
    for _ in range(min(runs, WORK // sizes**2)):
        if best.num_packs <= best.volume_bound:
            break
        packing = fill_by_worth(histogram, limits, max_graphs, value)
        if packing.num_packs < best.num_packs:
            best = packing
        owner = packing.pattern_of_entry
        filled = np.bincount(owner, share[packing.types] * packing.copies, len(packing.counts))
        graphs = packing.copies * packing.counts[owner]
        charged = np.bincount(
            packing.types, graphs / np.maximum(filled[owner], 1e-9), minlength=sizes
        )
        value = (1 - LEARNED) * value + LEARNED * share**LARGE_FIRST * charged / histogram.counts
    return best


def fewer_by_sample(best: Packing) -> Packing:
    """A packing with fewer packs than ``best`` where a sample shows how, else ``best``.

    It helps where a few patterns are used often.
    """
    times = max(1, best.histogram.num_graphs // SAMPLE_GRAPHS)
    counts = best.counts // times
    if not counts.any():
        return best
    part = best.with_counts(counts)
    histogram, rows = part_of(best.histogram, part.placed)
    sample = replace(part, histogram=histogram, types=np.searchsorted(rows, part.types))
    most = max(1, int(AT_ONCE * sample.num_packs))
    fewer = fewer_by_repair(
        sample, sample.volume_bound, pairs=SAMPLE_PAIRS, at_once=most, each=EACH * SAMPLE_PAIRS
    )
    if fewer.num_packs == sample.num_packs:
        return best
    fewer = replace(fewer, counts=fewer.counts * times)
    return best.with_counts(best.counts - counts * times).join(fewer, rows)
