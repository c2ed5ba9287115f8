"""Windows of blocks that fit their batches by themselves.

The problem: a window whose graphs are a little larger than the mean does not fit its batches,
however they are dealt, and gives some to other windows, from each of which a block is read for a
graph. Of molecules half of all windows are so. The idea: which blocks come together is ours to
draw, so after a random draw windows swap blocks until the totals of each are within what its
batches hold: a few swaps a window, as batches do with graphs (:mod:`staticgraph.packing.exact`).

The bias: blocks that are all large, or all small, come together less often than chance has it.
A window's mean size lies no further above the mean than a part of the room that the bucket leaves;
below, and in all else, windows are as they were drawn. Where blocks hardly differ in size none is
swapped. What cannot be brought within is left as drawn.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from staticgraph.packing.random import STEP, below
from staticgraph.sizes.whole_numbers import IntArray

# Of the room between a mean batch and the bucket, a window may take so much: what is left is for
# its batches, which are balanced among themselves.
PART = 0.25
# As for batches: probed partners, blocks looked at of each, tries a turn, turns.
PROBES = 8
WIDTH = 4
TRIES = 8
SWEEPS = 40
PATIENCE = 4

FloatArray = NDArray[np.float64]


def level(
    drawn: IntArray,
    standing: IntArray,
    graphs: int,
    window: int,
    sizes: IntArray,
    most: FloatArray,
    seed: np.uint64,
) -> None:
    """Swaps blocks between windows, in place.

    Args:
        drawn: ``[b]`` the blocks, window by window.
        standing: ``[n]`` the graphs, block by block.
        graphs: of a block.
        window: blocks of a window.
        sizes: ``[., C]`` of graphs.
        most: ``[C]`` what a bucket holds a graph of an exact batch.
        seed: of the probes.
    """
    if len(drawn) <= window:
        return
    totals, counts = _totals(standing, graphs, sizes)
    mean = totals.sum(axis=0) / len(standing)
    excess = totals - counts[:, None] * (mean + PART * np.maximum(0.0, most - mean))
    _level(drawn, excess / np.maximum(1.0, mean * graphs), window, seed)


@numba.njit(nogil=True, cache=True)
def _totals(standing: IntArray, graphs: int, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """``[b, C]`` the sizes and ``[b]`` the number of each block's graphs."""
    blocks = (len(standing) + graphs - 1) // graphs
    totals, counts = np.zeros((blocks, sizes.shape[1])), np.zeros(blocks)
    for k in range(len(standing)):
        counts[k // graphs] += 1
        for c in range(sizes.shape[1]):
            totals[k // graphs, c] += sizes[standing[k], c]
    return totals, counts


@numba.njit(nogil=True, cache=True)
def _level(drawn: IntArray, excess: FloatArray, window: int, seed: np.uint64) -> None:
    """Until the excess of each window's blocks together is at most 0 in every component."""
    windows, width = (len(drawn) + window - 1) // window, excess.shape[1]
    load = np.zeros((windows, width))
    for k in range(len(drawn)):
        load[k // window] += excess[drawn[k]]
    counter, stuck, least = seed, 0, windows + 1
    for _ in range(SWEEPS):
        over = 0
        for w in range(windows):
            for _ in range(TRIES):
                if _over(load[w]) == 0.0:
                    break
                counter += STEP
                partner = _roomiest(load, w, counter)
                counter += STEP * np.uint64(PROBES)
                _swap(drawn, excess, load, window, w, partner, counter)
                counter += STEP * np.uint64(WIDTH)
            over += _over(load[w]) > 0.0
        stuck = stuck + 1 if over >= least else 0
        least = min(least, over)
        if over == 0 or stuck > PATIENCE:
            break


@numba.njit(nogil=True, cache=True)
def _over(load: FloatArray) -> float:
    over = 0.0
    for c in range(len(load)):
        over += max(0.0, load[c])
    return over


@numba.njit(nogil=True, cache=True)
def _roomiest(load: FloatArray, w: int, counter: np.uint64) -> int:
    """Of a few random other windows, the one whose fullest component is emptiest."""
    best, least = -1, np.inf
    for _ in range(PROBES):
        counter += STEP
        other = below(counter, len(load) - 1)
        other += other >= w
        if load[other].max() < least:
            least, best = load[other].max(), other
    return best


@numba.njit(nogil=True, cache=True)
def _swap(
    drawn: IntArray,
    excess: FloatArray,
    load: FloatArray,
    window: int,
    w: int,
    partner: int,
    counter: np.uint64,
) -> None:
    """Makes the best swap of any block of a window with a few of another, if one helps."""
    first, last = partner * window, min((partner + 1) * window, len(drawn))
    best, gives, takes = _over(load[w]) + _over(load[partner]), -1, -1
    for _ in range(WIDTH):
        counter += STEP
        j = first + below(counter, last - first)
        for i in range(w * window, min((w + 1) * window, len(drawn))):
            both = 0.0
            for c in range(excess.shape[1]):
                delta = excess[drawn[i], c] - excess[drawn[j], c]
                both += max(0.0, load[w, c] - delta) + max(0.0, load[partner, c] + delta)
            if both < best:
                best, gives, takes = both, i, j
        if best == 0.0:
            break
    if gives >= 0:
        delta = excess[drawn[gives]] - excess[drawn[takes]]
        drawn[gives], drawn[takes] = drawn[takes], drawn[gives]
        load[w] -= delta
        load[partner] += delta
