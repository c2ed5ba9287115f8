"""Decoders that score an edge from two embeddings and a relation: DistMult, ComplEx, TransE.

All three turn the known endpoint and the relation into a query of the same width, and score
candidates against it: the first two by a product, the third by a distance. One query thus serves
many candidates at once, as training against shared negatives and ranking require. Every relation
has a second set of parameters for the reverse direction (destination to source), as in Marius.
Sources: Yang et al., ICLR 2015; Trouillon et al., ICML 2016; Bordes et al., NeurIPS 2013.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from staticgraph.outofcore.training.distances import FLOOR, distances


class Decoder(Protocol):
    """The interface of a decoder for training and ranking."""

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """Returns ``[2, R, D]``: initial parameters for the forward and the reverse direction."""
        ...

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """Returns ``[..., D]`` from the known endpoint and the relation, ``[..., D]`` each."""
        ...

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Returns ``[...]``: scores of one candidate per query."""
        ...

    def scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns ``[..., n, m]`` for queries ``[..., n, D]`` and candidates ``[..., m, D]``."""
        ...

    def ranked(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns the same scores, computed in float64 and rounded to float32.

        Equal candidates get equal scores, wherever they are in the tensor, and near ones keep their
        order.
        """
        ...


class DistMult:
    """<source, relation, destination>; relations are initialised to one."""

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """Returns ones, so that training begins with plain dot products."""
        return torch.ones(2, num_relations, dimension)

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """Returns the elementwise product."""
        return known * relation

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Returns the dot product."""
        return (query * candidate).sum(-1)

    def scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns all dot products."""
        return query @ candidates.transpose(-1, -2)

    def ranked(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns all dot products, rounded once."""
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


class TransE:
    """-|source + relation - destination|; relations are initialised to zero."""

    def initial(self, num_relations: int, dimension: int) -> Tensor:
        """Returns zeros."""
        return torch.zeros(2, num_relations, dimension)

    def query(self, known: Tensor, relation: Tensor) -> Tensor:
        """Returns the sum."""
        return known + relation

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Returns the negative Euclidean distance."""
        return -((query - candidate).square().sum(-1) + FLOOR).sqrt()

    def scores(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns all negative distances."""
        return -distances(query, candidates)

    def ranked(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Returns all negative distances: squares minus products, in float64.

        Unlike in :func:`distances`, the squares are not columns of the product: its rounding could
        give equal candidates different scores when they are near the query.
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
