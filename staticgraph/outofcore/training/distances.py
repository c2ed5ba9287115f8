"""Distances of many pairs by matrix products, accurate for near pairs, too.

``|q|^2 + |c|^2 - 2 q c`` needs one matrix product, while the differences of all pairs would need
memory for pairs times columns. But if q and c are near, cancellation leaves only rounding errors in
float32, which the gradient of the root amplifies. The product, with both squares as two extra
columns, is therefore computed in float64 and rounded once, after the cancellation. The gradient is
a product in the dtype of the values: for a pair it is ``(q - c) / distance``, which loses only as
many digits as the distance is smaller than the values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Added to squares: keeps the gradient of the root finite if a query equals its candidate.
FLOOR = 1e-12


class Distances(torch.autograd.Function):
    """Distances ``[..., n, m]`` between ``[..., n, D]`` and ``[..., m, D]``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, candidates: Tensor) -> Tensor:
        """Computes squares in float64, rounds them to the query's dtype and takes the root."""
        q, c = query.double(), candidates.double()
        squares = q.square().sum(-1, keepdim=True) + FLOOR, c.square().sum(-1, keepdim=True)
        left = torch.cat([-2.0 * q, squares[0], torch.ones_like(squares[0])], -1)
        right = torch.cat([c, torch.ones_like(squares[1]), squares[1]], -1)
        found = (left @ right.transpose(-1, -2)).to(query.dtype).clamp(min=FLOOR).sqrt()
        ctx.save_for_backward(query, candidates, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Returns both gradients: ``(q - c) / distance`` of each pair, summed by two products."""
        query, candidates, found = ctx.saved_tensors
        weights = gradients[0] / found
        by_query = query * weights.sum(-1, keepdim=True) - weights @ candidates
        total = weights.sum(-2).unsqueeze(-1)
        return by_query, candidates * total - weights.transpose(-1, -2) @ query


def distances(query: Tensor, candidates: Tensor) -> Tensor:
    """Returns Euclidean distances ``[..., n, m]`` between ``[..., n, D]`` and ``[..., m, D]``."""
    found: Tensor = Distances.apply(query, candidates)
    return found
