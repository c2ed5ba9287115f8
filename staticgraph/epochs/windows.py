"""Windows of blocks whose graphs fit the window's own batches.

The problem: a window whose graphs are slightly larger than the mean does not fit its batches,
however its graphs are arranged, and passes some graphs to other windows, which costs one extra
block read per graph. For molecules this affects half of all windows. The idea: the blocks of a
window can be chosen freely, so after a random draw windows swap blocks until the totals of each are
within what its batches hold: a few swaps per window, as batches do with graphs
(:mod:`staticgraph.packing.exact`).

The bias: where blocks differ in size, windows are nearer to the mean size than by chance, because
of the swaps of those that were too large; no window exceeds it by more than a part of the room that
the bucket leaves. For molecules one block in 20 ends up in another window than it was drawn for.
Anything unrelated to size is as drawn, and each block comes once per epoch, at any place in it.
Windows that cannot be brought within that bound, such as a few blocks of a store sorted by size,
stay as near to it as possible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop, part
from staticgraph.packing.random import STEP, below
from staticgraph.sizes.whole_numbers import IntArray

# The share of the room between a mean batch and the bucket that a window may use: the rest is for
# its batches, which are balanced among themselves.
PART = 0.25
# As for batches: partners probed, blocks examined of each, tries per turn, turns.
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
        graphs: graphs per block.
        window: blocks per window.
        sizes: ``[., C]`` sizes of the store's graphs.
        most: ``[C]`` the bucket's limits per graph of an exact batch.
        seed: of the probes.
    """
    if len(drawn) <= window:
        return
    totals, counts = _totals(standing, graphs, sizes)
    mean = totals.sum(axis=0) / len(standing)
    beyond = (totals - counts[:, None] * mean) / np.maximum(1.0, graphs * mean)
    allowed = PART * np.maximum(0.0, most - mean) / np.maximum(1.0, mean)
    _level(drawn, beyond, allowed, window, seed)


@loop
def _totals(standing: IntArray, graphs: int, sizes: IntArray) -> tuple[FloatArray, FloatArray]:
    """``[b, C]`` summed sizes and ``[b]`` number of graphs of each block."""
    blocks = (len(standing) + graphs - 1) // graphs
    totals, counts = np.zeros((blocks, sizes.shape[1])), np.zeros(blocks)
    for k in range(len(standing)):
        counts[k // graphs] += 1
        for c in range(sizes.shape[1]):
            totals[k // graphs, c] += sizes[standing[k], c]
    return totals, counts


@loop
def _level(
    drawn: IntArray, beyond: FloatArray, allowed: FloatArray, window: int, seed: np.uint64
) -> None:
    """Swaps until each window's sum over its blocks exceeds the mean in no component by more than
    is allowed per block."""
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
        over = 0  # counted here, since a partner may exceed the bound after its own turn
        for w in range(windows):
            over += (load[w] > allowed * min(window, blocks - w * window)).any()
        stuck = stuck + 1 if over >= least else 0
        least = min(least, over)
        if over == 0 or stuck > PATIENCE:
            break


@part
def _roomiest(load: FloatArray, w: int, counter: np.uint64) -> int:
    """Of a few random other windows, the one whose fullest component is the least full."""
    best, least = -1, np.inf
    for _ in range(PROBES):
        counter += STEP
        other = below(counter, len(load) - 1)
        other += other >= w
        if load[other].max() < least:
            least, best = load[other].max(), other
    return best


@part
def _swap(
    drawn: IntArray,
    beyond: FloatArray,
    load: FloatArray,
    window: int,
    w: int,
    partner: int,
    counter: np.uint64,
) -> None:
    """Swaps two blocks, any of one window and one of a few of another, that bring both windows
    nearest to the mean in squares; counting only the excess would stop once the partner is full."""
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
