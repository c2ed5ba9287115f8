"""Samples the neighbourhoods of batches of edges: endpoints and shared negatives are the seeds.

An edge to be predicted is also in the sampled graph, and an encoder that sees it learns to look it
up instead of predicting it. Every sampled entry that joins the endpoints of an edge of the batch is
therefore removed, in both directions. Both endpoints are seeds, and a node's neighbours are sampled
once, when it is first reached, so that only hop 0 has to be searched.

Invariant: every edge is in exactly one batch, or in one of its halves if no bucket holds its
sample.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.jit import loop
from staticgraph.outofcore.buffer.resident import ResidentGraph
from staticgraph.outofcore.sampling.dense import DenseSample

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """A batch of edges, padded to whole chunks; positions are indices into the batch's seeds.

    The last batch of a state may have fewer chunks than the others: padding it to B would waste a
    quarter of the rows with a policy of forty states.

    Attributes:
        source, destination: ``[B]`` positions, 0 in the padding.
        relation: ``[B]`` relations, 0 in the padding.
        negatives: ``[K]`` positions of drawn resident nodes.
        mask: ``[B]`` float, 0 for padding.
    """

    source: Tensor
    destination: Tensor
    relation: Tensor
    negatives: Tensor
    mask: Tensor

    def to(self, device: torch.device) -> LinkEnds:
        """Returns the same ends on a device."""
        return LinkEnds(*(getattr(self, each.name).to(device) for each in fields(self)))


class LinkSeeds:
    """Draws the seeds of the batches of edges of a loader.

    Args:
        batch_size: B.
        chunks: C, which divides the batch.
        negatives: resident nodes drawn for a full batch; a multiple of C.
        degree_fraction: share of them drawn as endpoints of the state's edges.
    """

    def __init__(
        self, batch_size: int, chunks: int, negatives: int, degree_fraction: float
    ) -> None:
        self._chunks, self._chunk_edges = chunks, batch_size // chunks
        self._negatives, self._degree_fraction = negatives // chunks, degree_fraction
        self._place = np.empty(0, np.int32)

    def draw(
        self, edges: NDArray[Any], resident: ResidentGraph, rng: np.random.Generator
    ) -> tuple[IntArray, LinkEnds]:
        """Returns the distinct rows of the ends of ``[n, 2 or 3]`` edges and of their negatives."""
        n, chunks = len(edges), -(-len(edges) // self._chunk_edges)
        padded, count = chunks * self._chunk_edges, chunks * self._negatives
        negatives = resident.draw(rng, count)
        by_degree = round(self._degree_fraction * count)
        if by_degree:
            pool = resident.edges
            picked = rng.integers(len(pool), size=by_degree)
            ends = np.where(rng.integers(2, size=by_degree), 0, pool.shape[1] - 1)
            negatives[rng.permutation(count)[:by_degree]] = pool[picked, ends]
        rows = np.concatenate([edges[:, 0], edges[:, -1], negatives]).astype(np.int64)
        seeds, local = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        if len(self._place) != len(resident.values):
            self._place = np.full(len(resident.values), -1, np.int32)
        seeds = seeds[: number_distinct(rows, self._place, seeds, local)]
        positions = torch.from_numpy(local)
        source, destination, relation = torch.zeros(3, padded, dtype=torch.int64)
        source[:n], destination[:n] = positions[:n], positions[n : 2 * n]
        if edges.shape[1] == 3:
            relation[:n] = torch.from_numpy(edges[:, 1].astype(np.int64))
        mask = (torch.arange(padded) < n).float()
        return seeds, LinkEnds(source, destination, relation, positions[2 * n :], mask)


def take_out(sample: DenseSample, ends: LinkEnds) -> None:
    """Removes the draws of a sample that join the ends of an edge of the batch."""
    real, seeds = ends.mask.bool(), sample.counts[0]
    source, destination = ends.source[real].numpy(), ends.destination[real].numpy()
    both = np.concatenate([source * seeds + destination, destination * seeds + source])
    _empty(sample.draws[0], np.unique(both), seeds)


@loop
def number_distinct(
    rows: IntArray, place: NDArray[np.int32], distinct_rows: IntArray, local: IntArray
) -> int:
    """Finds the distinct entries of ``rows``, and the position of each entry among them.

    Args:
        rows: ``[n]`` row numbers.
        place: ``[number of rows]`` int32 scratch space, all -1; all -1 again afterwards.
        distinct_rows: ``[n]``; its beginning is filled, in order of first appearance.
        local: ``[n]``; filled so that ``distinct_rows[local] == rows``.

    Returns:
        The number of distinct entries.
    """
    count = 0
    for i in range(len(rows)):
        row = rows[i]
        if place[row] < 0:
            place[row] = count
            distinct_rows[count] = row
            count += 1
        local[i] = place[row]
    for k in range(count):
        place[distinct_rows[k]] = -1
    return count


@loop
def _empty(drawn, pairs, seeds):
    for i in range(drawn.shape[0]):
        for r in range(drawn.shape[1]):
            position = drawn[i, r]
            if 0 <= position < seeds:
                pair = i * seeds + position
                at = np.searchsorted(pairs, pair)
                if at < len(pairs) and pairs[at] == pair:
                    drawn[i, r] = -1
