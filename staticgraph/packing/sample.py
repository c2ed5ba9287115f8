"""A few of the packs, repaired; what they gain is repeated for all that are like them.

The problem: at two to four graphs a pack the packs of any filler are one to three percent too many,
and exchanges (:mod:`staticgraph.packing.repair`) find better ones, but not among a hundred thousand
graphs in milliseconds. The idea: so many graphs have few distinct sizes, so most patterns are used
many times over. Of each a share of the packs is taken, a few thousand graphs in all; what exchanges
make of them is repeated as often as the share goes into the whole, and the packs that the share
leaves over stay as they were.

The invariant: never more packs than before, and pairs are counted, not timed, so the same packing
gives the same packs anywhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from staticgraph.packing.pack import Packing
from staticgraph.packing.repair import fewer_by_repair
from staticgraph.packing.swap import join
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import IntArray

# Graphs of a sample, about; pairs of graphs that its exchanges look at, about 15 ms.
GRAPHS = 2000
PAIRS = 800_000
# What is out of reach ends an attempt: a share of the packs at once, a share of the pairs for it.
AT_ONCE = 0.01
EACH = 0.25


def fewer_by_sample(best: Packing) -> Packing:
    """A packing of fewer packs than ``best`` where a sample of its packs shows how, else ``best``;
    that is where few patterns are used often."""
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
    """The patterns that are used, ``counts`` ``[P]`` times each."""
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
    """Packs as a packing of their graphs alone, and these graphs' rows in the histogram."""
    part, histogram = _used(packing, counts), packing.histogram
    held = np.zeros(len(histogram.counts), dtype=np.int64)
    np.add.at(held, part.types, part.copies * part.counts[part.pattern_of_entry])
    rows = np.flatnonzero(held)
    own = SizeHistogram(histogram.sizes[rows], held[rows], histogram.components)
    return replace(part, histogram=own, types=np.searchsorted(rows, part.types)), rows
