"""Samples the neighbourhoods of batches of edges: endpoints and shared negatives are the seeds.

An edge to be predicted is also in the sampled graph, and an encoder that sees it learns to look it
up. Every sampled entry that joins the endpoints of an edge of the batch is therefore removed, in
both directions. Both endpoints are seeds, and a node's neighbours are sampled once, when it is
first reached, so that only hop 0 has to be searched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.outofcore.sampling.buffer import ResidentGraph
from staticgraph.outofcore.sampling.dense import DenseSample
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.numeric_options import real_option, whole_option


class LinkEnds(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class LinkSeeds:
    """Draws the seeds of the batches of edges of a loader.

    Attributes:
        batch_size: B.
        chunks: C, which divides the batch.
        negatives: resident nodes drawn for a full batch; a multiple of C.
        degree_fraction: share of them drawn as endpoints of the state's edges.

    Raises:
        ValueError: if negatives or chunks are no whole numbers from 0 or 1 on, the share not from
            0 to 1, or the chunks do not divide the batch and the negatives.
    """

    batch_size: int
    chunks: int
    negatives: int
    degree_fraction: float

    def __post_init__(self) -> None:
        whole_option("chunks", self.chunks, 1)
        whole_option("negatives", self.negatives, 0)
        if real_option("degree_fraction", self.degree_fraction, 0.0) > 1.0:
            raise ValueError(f"degree_fraction={self.degree_fraction} is a share, 0 to 1")
        if self.batch_size % self.chunks or self.negatives % self.chunks:
            raise ValueError(
                f"chunks={self.chunks} do not divide batch_size={self.batch_size} and "
                f"negatives={self.negatives}: one of the two is not a multiple"
            )

    def draw(
        self, edges: NDArray[Any], resident: ResidentGraph, rng: np.random.Generator
    ) -> tuple[IntArray, LinkEnds]:
        """Returns the distinct rows of the ends of ``[n, 2 or 3]`` edges and of their negatives.

        They are in order of first appearance.
        """
        n, chunk_edges = len(edges), self.batch_size // self.chunks
        chunks = -(-n // chunk_edges)
        padded, count = chunks * chunk_edges, chunks * (self.negatives // self.chunks)
        negatives = resident.draw(rng, count)
        by_degree = round(self.degree_fraction * count)
        if by_degree:
            pool = resident.edges
            picked = rng.integers(len(pool), size=by_degree)
            ends = np.where(rng.integers(2, size=by_degree), 0, pool.shape[1] - 1)
            negatives[rng.permutation(count)[:by_degree]] = pool[picked, ends]
        rows = np.concatenate([edges[:, 0], edges[:, -1], negatives]).astype(np.int64)
        _, first, distinct = np.unique(rows, return_index=True, return_inverse=True)
        order = np.argsort(first)
        positions = torch.from_numpy(np.argsort(order)[distinct])
        source, destination, relation = torch.zeros(3, padded, dtype=torch.int64)
        source[:n], destination[:n] = positions[:n], positions[n : 2 * n]
        if edges.shape[1] == 3:
            relation[:n] = torch.from_numpy(edges[:, 1].astype(np.int64))
        mask = (torch.arange(padded) < n).float()
        return rows[first[order]], LinkEnds(source, destination, relation, positions[2 * n :], mask)


def take_out(sample: DenseSample, ends: LinkEnds) -> None:
    """Removes the draws of a sample that join the ends of an edge of the batch."""
    real, seeds = ends.mask.bool(), sample.hops[1]
    source, destination = ends.source[real].numpy(), ends.destination[real].numpy()
    both = np.concatenate([source * seeds + destination, destination * seeds + source])
    drawn = sample.draws[0]
    row, place = np.nonzero((drawn >= 0) & (drawn < seeds))
    joins = np.isin(row * seeds + drawn[row, place], both)
    drawn[row[joins], place[joins]] = -1
