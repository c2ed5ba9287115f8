"""How likely an edge is, from two embeddings and a relation: DistMult, ComplEx, TransE.

All three turn the known end and the relation into a query of the same width, and score a candidate
against it: by a product for the first two, by a distance for the third. So one query serves many
candidates at once, which is what training against shared negatives and ranking need. Every relation
has a second set of parameters for the way back (destination to source), as Marius has.
Sources: Yang et al., ICLR 2015; Trouillon et al., ICML 2016; Bordes et al., NeurIPS 2013.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from staticgraph.outofcore.training.distances import FLOOR, distances


class Decoder(Protocol):
    """What training and ranking ask of a decoder."""

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """``[2, R, D]`` first parameters: for the way there and the way back."""
        ...

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """``[..., D]`` from the known end and the relation's parameters, ``[..., D]`` each."""
        ...

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """``[...]`` scores of one candidate a query."""
        ...

    def scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        """``[..., n, m]`` scores of queries ``[..., n, D]`` against candidates ``[..., m, D]``."""
        ...

    def ranked(self, query: Tensor, candidates: Tensor) -> Tensor:
        """The same, computed in float64 and rounded to float32: equal candidates score alike,
        wherever they stand, and near ones keep their order."""
        ...


class DistMult:
    """<source, relation, destination>; relations begin at one."""

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """Ones, so that training begins with plain dot products."""
        return torch.ones(2, num_relations, dimension)

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """The product, entry by entry."""
        return known * relation

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """The dot product."""
        return (query * candidate).sum(-1)

    def scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        """All dot products."""
        return query @ candidates.transpose(-1, -2)

    def ranked(self, query: Tensor, candidates: Tensor) -> Tensor:
        """All dot products, rounded once."""
        return self.scores(query.double(), candidates.double()).float()


class ComplEx(DistMult):
    """Re<source, relation, conj(destination)>; the first half of a row is real, the second
    imaginary."""

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """One, as a complex number.

        Raises:
            ValueError: an odd dimension.
        """
        if dimension % 2:
            raise ValueError(f"ComplEx needs an even dimension; {dimension} has no two halves")
        parameters = torch.zeros(2, num_relations, dimension)
        parameters[..., : dimension // 2] = 1.0
        return parameters

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """The complex product, entry by entry."""
        (a, b), (c, d) = known.chunk(2, -1), relation.chunk(2, -1)
        return torch.cat([a * c - b * d, a * d + b * c], -1)


class TransE:
    """-|source + relation - destination|; relations begin at zero."""

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """Zeros."""
        return torch.zeros(2, num_relations, dimension)

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """The sum."""
        return known + relation

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Minus the Euclidean distance."""
        return -((query - candidate).square().sum(-1) + FLOOR).sqrt()

    def scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Minus all distances."""
        return -distances(query, candidates)

    def ranked(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Minus all distances: squares less products keep in float64 what float32 can hold.

        Unlike in :func:`distances` the squares are no columns of the product, whose rounding would
        tell equal candidates apart where they meet the query.
        """
        q, c = query.double(), candidates.double()
        products = 2.0 * (q @ c.transpose(-1, -2))
        squares = q.square().sum(-1).unsqueeze(-1) + c.square().sum(-1).unsqueeze(-2) - products
        return -(squares.clamp(min=0.0) + FLOOR).sqrt().float()


DECODERS: dict[str, type[DistMult] | type[ComplEx] | type[TransE]] = {
    "distmult": DistMult,
    "complex": ComplEx,
    "transe": TransE,
}
