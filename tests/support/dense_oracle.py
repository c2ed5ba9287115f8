"""A slow and simple implementation of DENSE, with dictionaries and Python integers.

:mod:`staticgraph.outofcore.sampling.dense` must give exactly the same numbers. Used by tests and
benchmarks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from staticgraph.outofcore.buffer.resident import Neighbours
from staticgraph.outofcore.sampling.dense import DenseSample

MASK = 2**64 - 1
GOLDEN, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(value: int) -> int:
    """splitmix64's finalizer."""
    value &= MASK
    value = (value ^ (value >> 30)) * MIX_1 & MASK
    value = (value ^ (value >> 27)) * MIX_2 & MASK
    return value ^ (value >> 31)


def choose(degree: int, fanout: int, seed: int, row: int, way: int) -> list[int]:
    """Returns which of a row's neighbours are sampled: all, or ``fanout`` distinct ones (Floyd)."""
    if degree <= fanout:
        return list(range(degree))
    key = mix(mix(seed + GOLDEN) ^ (row * GOLDEN + way))
    picked: list[int] = []
    for r in range(fanout):
        most = degree - fanout + r
        drawn = mix(key + (r + 1) * GOLDEN) % (most + 1)
        picked.append(most if drawn in picked else drawn)
    return picked


def sample(
    neighbours: Neighbours, fanouts: Sequence[int], seeds: NDArray[np.int64], seed: int
) -> DenseSample:
    """Samples the neighbourhood of distinct rows."""
    position = {int(row): place for place, row in enumerate(seeds)}
    hops, draws = [0, len(position)], []
    for fanout in fanouts:
        rows = list(position)[hops[-2] : hops[-1]]
        target = np.full((len(rows), fanout * len(neighbours.pointers)), -1, np.int32)
        for way, (pointers, indices) in enumerate(
            zip(neighbours.pointers, neighbours.indices, strict=True)
        ):
            for i, row in enumerate(rows):
                low, high = int(pointers[row]), int(pointers[row + 1])
                for r, which in enumerate(choose(high - low, fanout, seed, row, way)):
                    neighbour = int(indices[low + which])
                    target[i, way * fanout + r] = position.setdefault(neighbour, len(position))
        draws.append(target)
        hops.append(len(position))
    return DenseSample(np.array(list(position), np.int64), tuple(hops), tuple(draws))
