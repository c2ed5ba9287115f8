"""DENSE: neighbourhoods of several hops, each node's neighbours sampled once.

Problem: sampling separately for every layer repeats work, since a node reached at two hops is
sampled twice. Idea (MariusGNN, EuroSys 2023, section 4): a node's one-hop sample is drawn when the
node is first reached, and is used by every layer that needs it. A sample therefore consists of the
nodes, by the hop at which they were first reached, and one array of draws per hop. Invariant: nodes
are distinct, the seeds come first, and every entry of hop h's draws is a node of hop h + 1 or
before.

Sampling is uniform, without replacement (Floyd), and keyed by (seed, row, direction): a row's
sample depends only on the seed of the batch, not on the order of batches or the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.outofcore.disk.graph import ENDS, Direction
from staticgraph.packing.random import STEP, mix
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import sort_by_key


@dataclass(frozen=True, slots=True)
class DenseSample:
    """One sampled neighbourhood, unpadded.

    Attributes:
        nodes: ``[n]`` rows, by hop.
        hops: ``[k + 2]``; hop h's nodes are ``nodes[hops[h]:hops[h + 1]]``, the seeds are hop 0.
        draws: for hops 0 to k - 1, ``[n_h, width_h]`` int32 positions in ``nodes``, -1 where a node
            has fewer neighbours.
    """

    nodes: IntArray
    hops: tuple[int, ...]
    draws: tuple[NDArray[np.int32], ...]


@dataclass(frozen=True)
class Neighbours:
    """Neighbours by row, and samples of them; not thread-safe.

    ``ways`` holds, for each direction (incoming first), where the neighbours of each row begin,
    ``[rows + 1]``, and their rows, ``[edges]`` int32.
    """

    ways: tuple[tuple[IntArray, NDArray[np.int32]], ...]

    @classmethod
    def of(
        cls, source: NDArray[Any], destination: NDArray[Any], rows: int, direction: Direction = "in"
    ) -> Neighbours:
        """Groups edges, given as rows ``[e]`` and ``[e]``, by row, in linear time and in order."""
        ends, ways = (source, destination), []
        for end in ENDS[direction]:
            order, pointers = sort_by_key(ends[end], rows)
            ways.append((pointers, np.asarray(ends[-1 - end], np.int32)[order]))
        return cls(tuple(ways))

    @cached_property
    def degrees(self) -> IntArray:
        """``[rows]`` degrees over all directions, without self-loops."""
        rows = len(self._place)
        total = np.zeros(rows, np.int64)
        for pointers, neighbours in self.ways:
            row_of = np.repeat(np.arange(rows), np.diff(pointers))
            total += np.bincount(row_of[row_of != neighbours], minlength=rows)
        return total

    @cached_property
    def _place(self) -> NDArray[np.int32]:
        """``[rows]`` positions in the sample that is being drawn; -1 otherwise."""
        return np.full(len(self.ways[0][0]) - 1, -1, np.int32)

    def sample(self, seeds: IntArray, fanouts: Sequence[int], seed: int) -> DenseSample:
        """Samples the neighbourhood of ``[n]`` distinct rows.

        Args:
            seeds: the rows.
            fanouts: neighbours per node and direction, hop by hop from the seeds.
            seed: determines the draws.
        """
        place = self._place
        nodes = [np.ascontiguousarray(seeds, np.int64)]
        draws, hops = [], [0, len(seeds)]
        place[nodes[0]] = np.arange(len(seeds))
        for fanout in fanouts:
            drawn = np.full((len(nodes[-1]), fanout * len(self.ways)), -1, np.int32)
            new, count = np.empty(drawn.size, np.int64), 0
            for way, (pointers, indices) in enumerate(self.ways):
                count = _sample_hop(
                    nodes[-1], pointers, indices, fanout, way, np.uint64(seed), place, hops[-1],
                    drawn[:, way * fanout : (way + 1) * fanout], new, count,
                )  # fmt: skip
            draws.append(drawn)
            nodes.append(new[:count].copy())
            hops.append(hops[-1] + count)
        reached = np.concatenate(nodes)
        place[reached] = -1
        return DenseSample(reached, tuple(hops), tuple(draws))


@loop
def _sample_hop(nodes, pointers, indices, fanout, way, seed, place, base, target, new, count):
    """Samples neighbours into ``target``; newly reached nodes are appended to ``new[:count]``.

    Draw r of a row is ``mix(key + (r + 1) * STEP) % m``; with 64 bits the modulo's bias is below
    m / 2^64.
    """
    picked = np.empty(fanout, np.int64)
    for i in range(len(nodes)):
        row = nodes[i]
        low = pointers[row]
        degree = pointers[row + 1] - low
        draws = min(degree, fanout)
        if degree <= fanout:
            for r in range(draws):
                picked[r] = r
        else:
            key = mix(mix(seed + STEP) ^ (np.uint64(row) * STEP + np.uint64(way)))
            for r in range(fanout):
                most = degree - fanout + r
                drawn = np.int64(mix(key + np.uint64(r + 1) * STEP) % np.uint64(most + 1))
                for earlier in range(r):
                    if picked[earlier] == drawn:
                        drawn = most
                        break
                picked[r] = drawn
        for r in range(draws):
            neighbour = indices[low + picked[r]]
            if place[neighbour] < 0:
                place[neighbour] = base + count
                new[count] = neighbour
                count += 1
            target[i, r] = place[neighbour]
    return count
