"""One step of link prediction in static shapes: loss and gradients of a batch of edges.

A batch is B edges, divided into C chunks; the edges of a chunk share K negatives per side, drawn
from the resident nodes. Both directions are trained: the destination against negatives given source
and relation, and the source given destination and the reverse relation. The loss is the sum of
softmax cross-entropies. The rows that a batch touches, at most 2B + 2CK, are gathered into one
array; only it and the relations need a gradient. The last batch of a state is padded and masked,
either to B, so that all batches have the same shapes, or to the next whole chunk: in eager mode
another shape costs nothing, while padding to B would waste a quarter of the rows with a policy of
forty states. Source: Marius, OSDI 2021, sections 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.outofcore.buffer.buffer import ResidentState
from staticgraph.outofcore.training.adagrad import distinct
from staticgraph.outofcore.training.decoders import DECODERS, Decoder
from staticgraph.text.numeric_options import whole_option


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """The configuration of link prediction.

    Attributes:
        decoder: ``distmult``, ``complex`` or ``transe``.
        dimension: D.
        batch_size: B, edges per step.
        chunks: C, which divides the batch size.
        negatives: K, nodes that the edges of a chunk share as negatives, on each side.
        degree_fraction: share of the negatives drawn as endpoints of the state's edges (so by
            degree); the others are uniform over resident nodes.
        rate: the learning rate of Adagrad.
        spread: standard deviation of the initial embeddings.
        seed: the seed of all random draws.

    Raises:
        ValueError: for an unknown decoder, a count that is not a whole number from 1 on, chunks
            that do not divide the batch, a share outside 0 to 1, or a rate, spread or seed that is
            negative or not finite.
    """

    decoder: str = "distmult"
    dimension: int = 50
    batch_size: int = 1000
    chunks: int = 10
    negatives: int = 500
    degree_fraction: float = 0.0
    rate: float = 0.1
    spread: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.decoder not in DECODERS:
            raise ValueError(f"decoder={self.decoder!r}; choose one of {', '.join(DECODERS)}")
        # Plain Python numbers, since configurations are compared by their text.
        for name in ("dimension", "batch_size", "chunks", "negatives", "seed"):
            object.__setattr__(self, name, whole_option(name, getattr(self, name)))
        for name in ("degree_fraction", "rate", "spread"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not (0 <= self.rate < math.inf and 0 <= self.spread < math.inf and self.seed >= 0):
            raise ValueError(
                f"rate={self.rate}, spread={self.spread}, seed={self.seed}: none may be negative, "
                "and all must be finite"
            )
        if min(self.dimension, self.batch_size, self.chunks, self.negatives) < 1:
            raise ValueError(
                f"dimension, batch_size, chunks and negatives must be positive: {self}"
            )
        if self.batch_size % self.chunks:
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of chunks={self.chunks}"
            )
        if not 0.0 <= self.degree_fraction <= 1.0:
            raise ValueError(f"degree_fraction={self.degree_fraction} is a share, 0 to 1")


@dataclass(slots=True)
class LinkBatch:
    """One padded batch; positions are indices into the touched rows.

    The last batch of a state may have fewer chunks, so that C and B here are smaller than in the
    configuration.

    Attributes:
        gather: ``[2B + 2CK]`` rows of the buffer: the touched ones, then row 0 as padding.
        rows: only the touched rows.
        source, destination: ``[B]`` positions.
        relation: ``[B]`` relations.
        negatives: ``[2, C, K]`` positions, for the destination side and the source side.
        mask: ``[B]`` float, 0 for padding.
    """

    gather: Tensor
    rows: NDArray[np.int64]
    source: Tensor
    destination: Tensor
    relation: Tensor
    negatives: Tensor
    mask: Tensor


class LinkStep:
    """Computes loss and gradients of a batch, in static shapes.

    Args:
        config: the configuration, which determines the shapes.
        decoder: the decoder.
        compile: options for ``torch.compile``; None runs eagerly, which is as fast on a CPU.
        whole: pad every batch to B, not just to the end of its last chunk.
    """

    config: LinkConfig
    decoder: Decoder

    def __init__(
        self,
        config: LinkConfig,
        decoder: Decoder,
        compile: dict[str, Any] | None = None,
        *,
        whole: bool = True,
    ) -> None:
        self.config, self.decoder = config, decoder
        self._whole = whole
        self._loss: Callable[..., Tensor] = self.loss
        if compile is not None:
            self._loss = torch.compile(self.loss, fullgraph=True, dynamic=False, **compile)

    def fill(
        self,
        edges: NDArray[Any],
        resident: ResidentState,
        rng: np.random.Generator,
        place: NDArray[np.int32],
    ) -> LinkBatch:
        """Draws the negatives and indexes the touched rows; ``edges`` is ``[n <= B, 2 or 3]``."""
        c, k = self.config.chunks, self.config.negatives
        negatives = resident.draw(rng, (2, c, k))
        by_degree = round(self.config.degree_fraction * k)
        if by_degree:
            pool = resident.edges
            picked = rng.integers(len(pool), size=(2, c, by_degree))
            ends = np.where(rng.integers(2, size=picked.shape), 0, pool.shape[1] - 1)
            negatives[..., :by_degree] = pool[picked, ends]
        n, c = len(edges), self.chunks_of(len(edges))
        b = c * (self.config.batch_size // self.config.chunks)
        negatives = negatives[:, :c]
        nodes = np.full(2 * b + 2 * c * k, edges[0, 0], np.int64)
        nodes[:n], nodes[b : b + n] = edges[:, 0], edges[:, -1]
        nodes[2 * b :] = negatives.ravel()
        rows = resident.rows(nodes)
        gather, local = np.zeros(len(rows), np.int64), np.empty(len(rows), np.int64)
        count = distinct(rows, place, gather, local)
        relation = np.zeros(b, np.int64)
        if edges.shape[1] == 3:
            relation[:n] = edges[:, 1]
        mask = np.zeros(b, np.float32)
        mask[:n] = 1.0
        positions = torch.from_numpy(local)
        return LinkBatch(
            gather=torch.from_numpy(gather),
            rows=gather[:count],
            source=positions[:b],
            destination=positions[b : 2 * b],
            relation=torch.from_numpy(relation),
            negatives=positions[2 * b :].view(2, c, k),
            mask=torch.from_numpy(mask),
        )

    def chunks_of(self, edges: int) -> int:
        """Returns how many chunks a batch of this many edges, at least one, is padded to."""
        if self._whole:
            return self.config.chunks
        return -(-edges * self.config.chunks // self.config.batch_size)

    def loss(
        self,
        touched: Tensor,
        relations: Tensor,
        source: Tensor,
        destination: Tensor,
        relation: Tensor,
        negatives: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Returns the softmax cross-entropy, summed over real edges and both directions."""
        c = negatives.size(1)
        ends = touched[source], touched[destination]
        total = touched.new_zeros(())
        for way in (0, 1):
            query = self.decoder.query(ends[way], relations[way, relation])
            positive = self.decoder.score(query, ends[1 - way])
            others = self.decoder.scores(
                query.view(c, -1, query.size(-1)), touched[negatives[way]]
            ).flatten(0, 1)
            against = torch.logaddexp(others.logsumexp(-1), positive)
            total = total + ((against - positive) * mask).sum()
        return total

    def __call__(
        self, touched: Tensor, relations: Tensor, batch: LinkBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns loss and gradients for the touched rows ``[2B + 2CK, D]`` and the relations."""
        touched, relations = touched.requires_grad_(), relations.detach().requires_grad_()
        loss = self._loss(
            touched, relations, batch.source, batch.destination, batch.relation,
            batch.negatives, batch.mask,
        )  # fmt: skip
        gradient, relation_gradient = torch.autograd.grad(loss, [touched, relations])
        return loss.detach(), gradient, relation_gradient
