"""Batches of exactly B graphs that fit a fixed capacity: random, then repaired by a few swaps.

The problem: a training batch should hold exactly the user's number of graphs, randomly mixed, yet a
random batch of 128 molecules has up to 5% more or fewer nodes than the mean, and a fixed capacity
must hold the largest batch: 13% of the rows are padding. The idea: draw the batches at random, and
where one exceeds the capacity swap one of its graphs with a smaller one of a batch that has room,
choosing the pair that removes most of the excess. About half of the batches need two swaps; all
other graphs stay where they were drawn, so the batches are random ones that happen to fit.

The invariant: a swap moves no graph in or out of the epoch and leaves every batch its number of
graphs; it is made only if it lowers the combined excess of the two batches, so the repair ends.
Batches that cannot be repaired within :data:`SWEEPS` stay over capacity for the caller to place.

The usual balancing, which sorts the graphs and gives the largest to the least-filled batch, fills
as well but makes the same batches every epoch where all sizes differ, as on COLLAB.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from staticgraph.jit import inlined, loop, part
from staticgraph.packing.random import STEP, below
from staticgraph.sizes.whole_numbers import IntArray

# A batch that swaps with the best of 8 probed partners, looking at 4 of its graphs, comes within
# capacity in 2 swaps (ogbg-molhiv, COLLAB); 16 and 8 need as many swaps and twice the time.
PROBES = 8
WIDTH = 4
# Tries in a row for one batch before the next one gets its turn, and turns for all batches.
TRIES = 20
SWEEPS = 40
# Turns for all batches without progress after which the repair gives up.
PATIENCE = 4
# The most components for which loops are unrolled: nodes, edges, and one more.
UNROLLED = 3
Limits = tuple[float, ...] | np.ndarray


@inlined
def _over(load: float, limit: float) -> float:
    """The excess of one component over its limit, as a share of the limit; 0 where it fits."""
    return max(0.0, load - limit) / max(1.0, limit)


@part
def excess_of(load: np.ndarray, batch: int, limits: Limits) -> float:
    """The excess of a batch over its limits, summed over the components."""
    excess = 0.0
    for c in range(len(limits)):
        excess += _over(load[batch, c], limits[c])
    return excess


def repair(
    order: IntArray,
    sizes: IntArray,
    bounds: IntArray,
    limits: Sequence[int],
    seed: np.uint64,
    tries: int = SWEEPS * TRIES,
) -> tuple[int, int, int]:
    """Swaps graphs between batches, in place, until each batch fits.

    Args:
        order: ``[n]`` positions in ``sizes``; batch ``b`` is ``order[bounds[b] : bounds[b + 1]]``.
        sizes: ``[., C]`` nodes, edges and any further component.
        bounds: ``[K + 1]`` where each batch begins and ends; none is empty.
        limits: ``C`` numbers, the most that a batch may hold of each component.
        seed: of the probes.
        tries: the most per batch, on average.

    Returns:
        Batches initially over a limit, swaps made, and batches still over a limit.
    """
    # A tuple, so that the compiler knows its length and unrolls the loops; an array where it is
    # long, since each length would be compiled separately, for seconds.
    exact = tuple(float(limit) for limit in limits)
    numbers = exact if len(exact) <= UNROLLED else np.array(exact)
    return _repair(order, sizes, bounds, numbers, seed, tries)


@loop
def _repair(
    order: IntArray,
    sizes: IntArray,
    bounds: IntArray,
    limits: Limits,
    seed: np.uint64,
    tries: int,
) -> tuple[int, int, int]:
    batches = len(bounds) - 1
    width = len(limits)
    load = np.zeros((batches, width))
    local = np.empty((len(order), width))
    # A batch with a graph that exceeds a limit by itself cannot be repaired, only placed elsewhere.
    hopeless = np.zeros(batches, np.bool_)
    for b in range(batches):
        for k in range(bounds[b], bounds[b + 1]):
            for c in range(width):
                local[k, c] = sizes[order[k], c]
                load[b, c] += local[k, c]
                if local[k, c] > limits[c]:
                    hopeless[b] = True
    over_at_first = _count_over(load, limits)
    over, stuck, swaps = over_at_first, 0, 0
    counter, left = seed, tries * batches
    for _ in range(SWEEPS):
        if over == 0 or batches < 2 or stuck > PATIENCE or left == 0:
            break
        for b in range(batches):
            for _ in range(min(TRIES, left)):
                if hopeless[b] or excess_of(load, b, limits) == 0:
                    break
                left -= 1
                counter += STEP
                partner = _roomiest(load, b, limits, counter)
                counter += STEP * np.uint64(PROBES)
                swaps += _swap(order, local, load, bounds, b, partner, limits, counter)
                counter += STEP * np.uint64(WIDTH)
        before, over = over, _count_over(load, limits)
        stuck = stuck + 1 if over >= before else 0
    return over_at_first, swaps, over


@part
def _count_over(load: np.ndarray, limits: Limits) -> int:
    """The number of batches that are over a limit."""
    over = 0
    for b in range(len(load)):
        over += excess_of(load, b, limits) > 0
    return over


@part
def _roomiest(load: np.ndarray, batch: int, limits: Limits, counter: np.uint64) -> int:
    """Of a few random other batches, the one whose fullest component is the least full."""
    best = -1
    least = np.inf
    others = len(load) - 1
    for _ in range(PROBES):
        counter += STEP
        other = below(counter, others)
        other += other >= batch
        fill = 0.0
        for c in range(len(limits)):
            fill = max(fill, load[other, c] / max(1.0, limits[c]))
        if fill < least:
            least = fill
            best = other
    return best


@part
def _swap(
    order: IntArray,
    local: np.ndarray,
    load: np.ndarray,
    bounds: IntArray,
    batch: int,
    partner: int,
    limits: Limits,
    counter: np.uint64,
) -> int:
    """Makes the best swap of any graph of ``batch`` with a few of ``partner``; 1 if one helped."""
    start, stop = bounds[batch], bounds[batch + 1]
    first, last = bounds[partner], bounds[partner + 1]
    best = excess_of(load, batch, limits) + excess_of(load, partner, limits)
    gives, takes = -1, -1
    for _ in range(WIDTH):
        counter += STEP
        j = first + below(counter, last - first)
        for i in range(start, stop):
            ours, theirs = 0.0, 0.0
            for c in range(len(limits)):
                delta = local[i, c] - local[j, c]
                ours += _over(load[batch, c] - delta, limits[c])
                theirs += _over(load[partner, c] + delta, limits[c])
            if ours + theirs < best:
                best, gives, takes = ours + theirs, i, j
        if best == 0:
            break
    if gives < 0:
        return 0
    order[gives], order[takes] = order[takes], order[gives]
    for c in range(len(limits)):
        delta = local[gives, c] - local[takes, c]
        load[batch, c] -= delta
        load[partner, c] += delta
        local[gives, c] -= delta
        local[takes, c] += delta
    return 1


def exact_bounds(num_graphs: int, batch_size: int) -> IntArray:
    """``[K + 1]`` bounds of batches of exactly ``batch_size`` graphs; the last may be shorter."""
    return np.append(np.arange(0, num_graphs, batch_size), num_graphs).astype(np.int64)


def even_bounds(num_graphs: int, batches: int) -> IntArray:
    """``[K + 1]`` bounds of ``batches`` batches whose graph counts differ by at most one."""
    return (np.arange(batches + 1, dtype=np.int64) * num_graphs) // batches
