"""Samples the neighbourhoods of batches of edges: endpoints and shared negatives are the seeds.

An edge to be predicted is also in the sampled graph, and an encoder that sees it learns to look it
up instead of predicting it. Every sampled entry that joins the endpoints of an edge of the batch is
therefore removed, in both directions. Both endpoints are seeds, and a node's neighbours are sampled
once, when it is first reached, so that only hop 0 has to be searched.

Invariant: every edge is in exactly one batch, or in one of its halves if the seeds fit no rung.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from staticgraph.jit import loop
from staticgraph.outofcore.buffer.resident import ResidentGraph
from staticgraph.outofcore.sampling.dense import DenseSample, DenseSampler
from staticgraph.outofcore.sampling.hop_profile import profile_of
from staticgraph.outofcore.sampling.hops import HopLadder
from staticgraph.outofcore.sampling.sampled_batch import LinkEnds


@dataclass(frozen=True, slots=True)
class LinkSampler:
    """Samples the neighbourhoods of the edges of one state.

    Args:
        resident: the state.
        sampler: the sampler over its neighbours.
        batch_size: B; edges are padded to it.
        negatives: resident nodes drawn for each batch.
        degree_fraction: share of them drawn as endpoints of the state's edges.
        exclude: remove the batch's own edges from the samples.
    """

    resident: ResidentGraph
    sampler: DenseSampler
    batch_size: int
    negatives: int
    degree_fraction: float = 0.0
    exclude: bool = False

    def seeds(
        self, edges: NDArray[Any], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns distinct rows, and positions of sources, destinations and negatives in them."""
        drawn = rng.choice(np.flatnonzero(self.resident.node_of >= 0), self.negatives)
        by_degree = round(self.degree_fraction * self.negatives)
        if by_degree:
            pool = self.resident.edges
            picked = rng.integers(len(pool), size=by_degree)
            ends = np.where(rng.integers(2, size=by_degree), 0, pool.shape[1] - 1)
            drawn[rng.permutation(self.negatives)[:by_degree]] = pool[picked, ends]
        nodes = np.concatenate([edges[:, 0], edges[:, -1], drawn]).astype(np.int64)
        seeds, local = np.unique(nodes, return_inverse=True)
        return seeds, local.ravel()

    def fit(
        self, edges: NDArray[Any], rng: np.random.Generator, draw: int, ladder: HopLadder
    ) -> list[tuple[DenseSample, int | None, LinkEnds]]:
        """Returns samples with their rungs: usually one, or halves if the seeds fit no rung."""
        seeds, local = self.seeds(edges, rng)
        sample = self.sampler.sample(seeds, draw)
        rung = ladder.rung_for(sample.counts)
        if rung is None and len(edges) > 1:
            ladder.statistics.splits += 1
            middle = len(edges) // 2
            return [
                *self.fit(edges[:middle], rng, draw, ladder),
                *self.fit(edges[middle:], rng, draw, ladder),
            ]
        ladder.count(sample, rung)
        if self.exclude:
            n = len(edges)
            take_out(sample, local[:n], local[n : 2 * n])
        return [(sample, rung, LinkEnds(edges, local, self.batch_size))]

    def profile(self, seed: int) -> HopLadder | None:
        """Returns a ladder for batches of the state's edges; None if it has no edges."""
        edges = self.resident.edges
        if not len(edges):
            return None
        size = min(self.batch_size, len(edges))
        most = min(2 * self.batch_size + self.negatives, int((self.resident.node_of >= 0).sum()))

        def draw(rng: np.random.Generator) -> NDArray[np.int64]:
            """Returns the seeds of a batch of random edges."""
            return self.seeds(edges[rng.choice(len(edges), size, replace=False)], rng)[0]

        return profile_of(self.sampler, draw, most, seed)


def take_out(
    sample: DenseSample, source: NDArray[np.int64], destination: NDArray[np.int64]
) -> None:
    """Removes draws that join the endpoints of these edges (``[n]`` positions among seeds)."""
    seeds = sample.counts[0]
    both = np.concatenate([source * seeds + destination, destination * seeds + source])
    _empty(sample.draws[0], np.unique(both), seeds)


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
