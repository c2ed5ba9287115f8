"""Which graph takes which place of a packing, drawn again each epoch.

A packing fixes only the sizes that go together (paper, section 2.6). Graphs of one size are
interchangeable in it, so each epoch shuffles the graphs of every size, assigns them to the places,
and shuffles the packs: two graphs that met in one epoch need not meet in the next. How random the
result is depends on the sizes: where every graph has a unique size (COLLAB), the packs of an
offline packing never change, and a stream over a shuffled order mixes better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.jit import loop
from staticgraph.packing.packing_result import Packing
from staticgraph.packing.random import shuffle, stream_of
from staticgraph.sizes.whole_numbers import IntArray, distinct_rows
from staticgraph.text.how_many import how_many


def types_of(packing: Packing, sizes: ArrayLike) -> IntArray:
    """``[n]`` int64: the row of the packed histogram for each graph of ``sizes`` ``[n, C]``.

    Raises:
        ValueError: the graphs are not those that were packed; the message gives both counts.
    """
    rows = np.ascontiguousarray(sizes, dtype=np.int64)
    distinct, types, counts = distinct_rows(rows)
    known = packing.histogram
    if not (np.array_equal(distinct, known.sizes) and np.array_equal(counts, known.counts)):
        raise ValueError(
            f"{how_many(len(rows), 'graph')} of {how_many(len(distinct), 'size')}, but the packing "
            f"holds {how_many(known.num_graphs, 'graph')} of "
            f"{how_many(len(known.counts), 'size')}: pack the histogram of these"
        )
    return types.astype(np.int64)


def draw_packs(
    packing: Packing, types: IntArray, *, seed: int = 0, epoch: int = 0
) -> tuple[IntArray, IntArray]:
    """Assigns the graphs to the packs.

    Args:
        packing: the sizes that go together.
        types: ``[n]`` int64 from :func:`types_of`.
        seed: of the order, together with ``epoch``.
        epoch: each epoch assigns them again.

    Returns:
        ``order`` ``[n]``, the positions of the graphs pack by pack, and ``bounds`` ``[packs + 1]``,
        where each pack begins and ends.
    """
    key = stream_of(seed, epoch)
    order = np.arange(len(types), dtype=np.int64)
    shuffle(order, key)
    packs = np.arange(packing.num_packs, dtype=np.int64)
    shuffle(packs, stream_of(seed, epoch, 1))
    return _deal(
        order,
        types,
        packs,
        len(packing.histogram.counts),
        packing.starts,
        packing.types,
        packing.copies,
        packing.counts,
    )


@loop
def _deal(
    order: IntArray,
    types: IntArray,
    packs: IntArray,
    num_types: int,
    starts: IntArray,
    pattern_types: IntArray,
    copies: IntArray,
    counts: IntArray,
) -> tuple[IntArray, IntArray]:
    """Assigns the graphs of each type, in shuffled order, to the packs in shuffled order."""
    begin = np.zeros(num_types + 1, np.int64)
    for t in types:
        begin[t + 1] += 1
    for t in range(num_types):
        begin[t + 1] += begin[t]
    place = begin[:-1].copy()
    by_type = np.empty(len(order), np.int64)
    for k in order:
        by_type[place[types[k]]] = k
        place[types[k]] += 1
    pattern_of = np.empty(len(packs), np.int64)
    pack = 0
    for p in range(len(counts)):
        pattern_of[pack : pack + counts[p]] = p
        pack += counts[p]
    for t in range(num_types):
        place[t] = begin[t]
    dealt = np.empty(len(order), np.int64)
    bounds = np.zeros(len(packs) + 1, np.int64)
    k = 0
    for b in range(len(packs)):
        p = pattern_of[packs[b]]
        for entry in range(starts[p], starts[p + 1]):
            t = pattern_types[entry]
            for _ in range(copies[entry]):
                dealt[k] = by_type[place[t]]
                place[t] += 1
                k += 1
        bounds[b + 1] = k
    return dealt, bounds
