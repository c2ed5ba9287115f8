"""One step of link prediction: decoders, configuration, loss, and the update of embeddings.

A batch is B edges, divided into C chunks; the edges of a chunk share K negatives per side, drawn
from the resident nodes. Both directions are trained: the destination against negatives given source
and relation, and the source given destination and the reverse relation. The loss is the sum of
softmax cross-entropies. Source: Marius, OSDI 2021, sections 2 and 3.

A decoder turns the known endpoint and the relation into a query, and scores candidates against it:
one query serves many candidates at once, as shared negatives and ranking require. Every relation
has a second set of parameters for the reverse direction, as in Marius. Sources: Yang et al., ICLR
2015; Trouillon et al., ICML 2016; Bordes et al., NeurIPS 2013.

Only the rows that a batch touched are updated, by Adagrad: a row's squared gradients are added to
its sums, and its values change by ``-rate * g / (sqrt(sum) + eps)``. Rows are distinct, so the
result does not depend on their order. Source: Duchi et al., JMLR 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from staticgraph.jit import loop
from staticgraph.outofcore.sampling.link_sampling import LinkEnds, LinkSeeds
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.numeric_options import real_option, whole_option

EPSILON = np.float32(1e-10)
Rows = NDArray[np.float32]
# Added to squares: keeps the gradient of the root finite if a query equals its candidate.
FLOOR = 1e-12


class DistMult:
    """<source, relation, destination>; relations are initialised to one, so that training begins
    with plain dot products."""

    start: ClassVar[float] = 1.0

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """Returns initial relations, ``[2, R, D]``."""
        return torch.full((2, num_relations, dimension), self.start)

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """Returns the elementwise product of the known endpoint and the relation, ``[..., D]``."""
        return known * relation

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Returns the dot product."""
        return (query * candidate).sum(-1)

    def scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns ``[..., n, m]`` for queries ``[..., n, D]`` and candidates ``[..., m, D]``."""
        return query @ candidates.transpose(-1, -2)

    def ranked(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns the same scores, computed in float64 and rounded to float32.

        Equal candidates get equal scores, wherever they are in the tensor, and near ones keep their
        order.
        """
        return self.scores(query.double(), candidates.double()).float()


class ComplEx(DistMult):
    """Re<source, relation, conj(destination)>; half of a row is real, the other half imaginary."""

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """Returns the complex number one.

        Raises:
            ValueError: if the dimension is odd.
        """
        if dimension % 2:
            raise ValueError(f"ComplEx needs an even dimension; {dimension} has no two halves")
        parameters = torch.zeros(2, num_relations, dimension)
        parameters[..., : dimension // 2] = 1.0
        return parameters

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """Returns the elementwise complex product."""
        (a, b), (c, d) = known.chunk(2, -1), relation.chunk(2, -1)
        return torch.cat([a * c - b * d, a * d + b * c], -1)


class TransE(DistMult):
    """-|source + relation - destination|; relations are initialised to zero."""

    start: ClassVar[float] = 0.0

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """Returns the sum."""
        return known + relation

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Returns the negative Euclidean distance."""
        return -((query - candidate).square().sum(-1) + FLOOR).sqrt()

    def scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns all negative distances: squares minus products.

        The differences of all pairs would need memory for pairs times columns. In float64, and
        rounded once: if a query and its candidate are near, cancellation would leave only rounding
        errors in float32, which the gradient of the root amplifies.
        """
        q, c = query.double(), candidates.double()
        products = 2.0 * (q @ c.transpose(-1, -2))
        squares = q.square().sum(-1).unsqueeze(-1) + c.square().sum(-1).unsqueeze(-2) - products
        return -(squares.clamp(min=0.0) + FLOOR).sqrt().to(query.dtype)


DECODERS: dict[str, type[DistMult]] = {"distmult": DistMult, "complex": ComplEx, "transe": TransE}


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
        ValueError: for an unknown decoder, a count below 1, chunks that do not divide the batch, a
            share outside 0 to 1, or a rate, spread or seed that is negative or not finite.
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
            number = whole_option(name, getattr(self, name), int(name != "seed"))
            object.__setattr__(self, name, number)
        for name in ("degree_fraction", "rate", "spread"):
            object.__setattr__(self, name, real_option(name, getattr(self, name), 0.0))
        # Refuses what cannot be drawn.
        LinkSeeds(self.batch_size, self.chunks, self.drawn, self.degree_fraction)

    @property
    def drawn(self) -> int:
        """The nodes drawn as negatives of a full batch."""
        return 2 * self.chunks * self.negatives


def link_loss(
    decoder: DistMult, rows: Tensor, relations: Tensor, ends: LinkEnds, chunks: int
) -> Tensor:
    """Returns the softmax cross-entropy, summed over real edges and both directions.

    Args:
        decoder, ends: what scores an edge, and the edges, on the device of the rows.
        rows: ``[seeds or more, D]``, the embeddings of the batch's seeds, or their encoding.
        relations: ``[2, R, D]``.
        chunks: the chunks of the batch, each with its own negatives.
    """
    nodes = rows[ends.source], rows[ends.destination]
    negatives = ends.negatives.view(2, chunks, -1)
    total = rows.new_zeros(())
    for way in (0, 1):
        query = decoder.query(nodes[way], relations[way, ends.relation])
        positive = decoder.score(query, nodes[1 - way])
        others = decoder.scores(
            query.view(chunks, -1, query.size(-1)), rows[negatives[way]]
        ).flatten(0, 1)
        against = torch.logaddexp(others.logsumexp(-1), positive)
        total = total + ((against - positive) * ends.mask).sum()
    return total


@loop
def adagrad_rows(
    values: Rows, sums: Rows, rows: IntArray, gradient: Rows, rate: np.float32 | float
) -> None:
    """Updates ``values[rows]`` and ``sums[rows]`` in place with the first n rows of ``gradient``.

    Each is ``[n, D]`` float32.
    """
    for i in range(len(rows)):
        row = rows[i]
        for d in range(values.shape[1]):
            g = gradient[i, d]
            total = sums[row, d] + g * g
            sums[row, d] = total
            values[row, d] -= rate * g / (np.sqrt(total) + EPSILON)
