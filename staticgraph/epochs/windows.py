"""Windows of blocks that fit their batches by themselves.

The problem: a window whose graphs are a little larger than the mean does not fit its batches,
however they are dealt, and gives some to other windows, from each of which a block is read for a
graph. Of molecules half of all windows are so. The idea: which blocks come together is ours to
draw, so after a random draw windows swap blocks until the totals of each are within what its
batches hold: a few swaps a window, as batches do with graphs (:mod:`staticgraph.packing.exact`).

The bias: where blocks differ in size, windows are nearer to the mean size than chance has them, by
the swaps of those that were too large; no window lies above it by more than a part of the room that
the bucket leaves. Of molecules one block in 20 comes with others than it was drawn with. What has
nothing to do with size is as it was drawn, and each block comes once an epoch, at any place of it.
Windows that cannot be brought within, such as few blocks of a store sorted by size, stay near it.
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
WIDTH = 8
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
    beyond = (totals - counts[:, None] * mean) / np.maximum(1.0, graphs * mean)
    allowed = PART * np.maximum(0.0, most - mean) / np.maximum(1.0, mean)
    _level(drawn, beyond, allowed, window, seed)


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
def _level(
    drawn: IntArray, beyond: FloatArray, allowed: FloatArray, window: int, seed: np.uint64
) -> None:
    """Until in each window all blocks together are beyond the mean by what is allowed a block, in
    no component by more."""
    windows, blocks = (len(drawn) + window - 1) // window, len(drawn)
    load = np.zeros((windows, beyond.shape[1]))
    for k in range(blocks):
        load[k // window] += beyond[drawn[k]]
    counter, stuck, least = seed, 0, windows + 1
    for _ in range(SWEEPS):
        for w in range(windows):
            for _ in range(TRIES):
                if not (load[w] > allowed * min(window, blocks - w * window)).any():
                    break
                counter += STEP
                partner = _roomiest(load, w, counter)
                counter += STEP * np.uint64(PROBES)
                _swap(drawn, beyond, load, window, w, partner, counter)
                counter += STEP * np.uint64(WIDTH)
        over = 0  # counted now, since a partner may be beyond after its own turn
        for w in range(windows):
            over += (load[w] > allowed * min(window, blocks - w * window)).any()
        stuck = stuck + 1 if over >= least else 0
        least = min(least, over)
        if over == 0 or stuck > PATIENCE:
            break


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
    beyond: FloatArray,
    load: FloatArray,
    window: int,
    w: int,
    partner: int,
    counter: np.uint64,
) -> None:
    """Of any block of a window and a few of another swaps those two that bring both nearest to the
    mean, by squares: to count what is over alone ends where the partner has no more room."""
    first, last = partner * window, min((partner + 1) * window, len(drawn))
    best, gives, takes = (load[w] ** 2).sum() + (load[partner] ** 2).sum(), -1, -1
    for _ in range(WIDTH):
        counter += STEP
        j = first + below(counter, last - first)
        for i in range(w * window, min((w + 1) * window, len(drawn))):
            both = 0.0
            for c in range(beyond.shape[1]):
                delta = beyond[drawn[i], c] - beyond[drawn[j], c]
                both += (load[w, c] - delta) ** 2 + (load[partner, c] + delta) ** 2
            if both < best:
                best, gives, takes = both, i, j
    if gives >= 0:
        delta = beyond[drawn[gives]] - beyond[drawn[takes]]
        drawn[gives], drawn[takes] = drawn[takes], drawn[gives]
        load[w] -= delta
        load[partner] += delta
