"""Repairing a sample of the packs and repeating the gain for all packs like them.

The problem: at two to four graphs per pack every filler uses one to three percent too many packs,
and exchanges (:mod:`staticgraph.packing.repair`) find better ones, but not among a hundred thousand
graphs in milliseconds. The idea: that many graphs have few distinct sizes, so most patterns are
used many times. A share of each pattern's packs is taken, a few thousand graphs in total; the
result of the exchanges is repeated as often as the share fits into the whole, and the packs that
the share leaves over stay as they were.

The invariant: never more packs than before, and pairs are counted, not timed, so the same packing
gives the same packs on every machine.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from staticgraph.packing.pack import Packing
from staticgraph.packing.repair import fewer_by_repair
from staticgraph.packing.swap import join
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

# The approximate graphs of a sample; pairs of graphs that its exchanges look at, about 15 ms.
GRAPHS = 2000
PAIRS = 800_000
# Attempts are limited so that hopeless ones end early: the share of the packs removed at once, and
# the share of the pairs per attempt.
AT_ONCE = 0.01
EACH = 0.25


def fewer_by_sample(best: Packing) -> Packing:
    """A packing with fewer packs than ``best`` where a sample shows how, else ``best``.

    It helps where a few patterns are used often.
    """
    times = max(1, best.histogram.num_graphs // GRAPHS)
    counts = best.counts // times
    if not counts.any():
        return best
    sample, rows = _apart(best, counts)
    most = max(1, int(AT_ONCE * sample.num_packs))
    found = fewer_by_repair(
        sample, sample.volume_bound, pairs=PAIRS, at_once=most, each=EACH * PAIRS
    )
    if found.num_packs == sample.num_packs:
        return best
    found = replace(found, counts=found.counts * times)
    return join(_used(best, best.counts - counts * times), found, rows)


def _used(packing: Packing, counts: IntArray) -> Packing:
    """The packing restricted to patterns that are used, ``counts`` ``[P]`` times each."""
    kept = counts > 0
    entries = kept[packing.pattern_of_entry]
    starts = np.concatenate([[0], np.cumsum(np.diff(packing.starts)[kept])]).astype(np.int64)
    return replace(
        packing,
        starts=starts,
        types=packing.types[entries],
        copies=packing.copies[entries],
        counts=counts[kept],
    )


def _apart(packing: Packing, counts: IntArray) -> tuple[Packing, IntArray]:
    """Some of the packs as a packing of their own graphs, and those graphs' histogram rows."""
    part, histogram = _used(packing, counts), packing.histogram
    held = np.zeros(len(histogram.counts), dtype=np.int64)
    np.add.at(held, part.types, part.copies * part.counts[part.pattern_of_entry])
    rows = np.flatnonzero(held)
    own = SizeHistogram(histogram.sizes[rows], held[rows], histogram.components)
    return replace(part, histogram=own, types=np.searchsorted(rows, part.types)), rows
