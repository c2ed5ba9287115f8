"""Repeated filling that starts each time with the sizes that ended in poor packs before.

The problem: the filler takes the largest graphs first and has a poor choice for the last packs. The
idea is sequential value correction (Mukhacheva et al. 2000; Belov and Scheithauer
2007, "Setup and open-stacks minimization in one-dimensional stock cutting"): a size's value is its
share of a pack divided by how full its packs were, so unused space is charged to the sizes in that
pack; the next run fills by these values. A run takes under a millisecond for a few hundred sizes,
so a few dozen cost as much as one look at pairs in Python.

The invariant: runs are counted, not timed, so the same histogram gives the same packs on every
machine.
"""

from __future__ import annotations

import numpy as np

from staticgraph.packing.fill import component_weights, fill_by_worth, with_graphs
from staticgraph.packing.pack import Packing, volume_bound

# The most runs, and the most sizes squared over all of them: about 20 ms. PCQM4Mv2 at 2.5 graphs
# per pack is 1.1% over the bound after 40 runs and 0.4% after 150.
RUNS = 150
WORK = 1_500_000
# Graphs per pack from which exchanges gain more (:mod:`.sample`), and the most runs there.
MORE_GRAPHS, FEWER_RUNS = 2.7, 15
# Above this many graphs per pack the swaps are better.
MOST_GRAPHS = 6
# The weight of the last run in a value, and an exponent that favors large graphs beyond their
# share.
LEARNED = 0.8
LARGE_FIRST = 1.03
SHARPNESS = 2.0


def fewer_by_correction(best: Packing) -> Packing:
    """Returns a packing with fewer packs than ``best`` where a run finds one, else ``best``."""
    histogram, limits, max_graphs = best.histogram, best.limits, best.max_graphs
    sizes = len(histogram.counts)
    if not sizes or histogram.num_graphs > MOST_GRAPHS * best.num_packs:
        return best
    least = volume_bound(histogram, limits, max_graphs)
    weights = component_weights(histogram, limits, max_graphs, SHARPNESS)
    rows, bounds = with_graphs(histogram, limits, max_graphs)
    share = (rows / np.maximum(1, bounds)) @ weights / max(weights.sum(), 1e-12)
    value = share**LARGE_FIRST
    runs = RUNS if histogram.num_graphs < MORE_GRAPHS * best.num_packs else FEWER_RUNS
    for _ in range(min(runs, WORK // sizes**2)):
        if best.num_packs <= least:
            break
        found = fill_by_worth(histogram, limits, max_graphs, value)
        if found.num_packs < best.num_packs:
            best = found
        owner = found.pattern_of_entry
        filled = np.bincount(owner, share[found.types] * found.copies, len(found.counts))
        graphs = found.copies * found.counts[owner]
        charged = np.bincount(
            found.types, graphs / np.maximum(filled[owner], 1e-9), minlength=sizes
        )
        value = (1 - LEARNED) * value + LEARNED * share**LARGE_FIRST * charged / histogram.counts
    return best
