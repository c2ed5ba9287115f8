"""Distances of many pairs by products, near pairs included.

``|q|^2 + |c|^2 - 2 q c`` takes one matrix product where the differences of all pairs would take as
much memory as there are pairs and columns; but where q and c are near, what is left in float32 is
the rounding of what cancels, and its root's gradient grows with it. So the product, with both
squares as two more columns of it, is in float64 and is rounded once, when nothing cancels any more.
The gradient is a product in the type of the values: of a pair it is ``(q - c) / distance``, which
loses no more digits than the distance is smaller than the values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Added to squares: keeps the gradient of the root finite where a query meets its candidate exactly.
FLOOR = 1e-12


class Distances(torch.autograd.Function):
    """``[..., n, m]`` distances of ``[..., n, D]`` from ``[..., m, D]``."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, candidates: Tensor) -> Tensor:
        """Squares in float64, rounded to the type of the query, then the root."""
        q, c = query.double(), candidates.double()
        squares = q.square().sum(-1, keepdim=True) + FLOOR, c.square().sum(-1, keepdim=True)
        left = torch.cat([-2.0 * q, squares[0], torch.ones_like(squares[0])], -1)
        right = torch.cat([c, torch.ones_like(squares[1]), squares[1]], -1)
        found = (left @ right.transpose(-1, -2)).to(query.dtype).clamp(min=FLOOR).sqrt()
        ctx.save_for_backward(query, candidates, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """By both; ``(q - c) / distance`` of each pair, summed by two products."""
        query, candidates, found = ctx.saved_tensors
        weights = gradients[0] / found
        by_query = query * weights.sum(-1, keepdim=True) - weights @ candidates
        total = weights.sum(-2).unsqueeze(-1)
        return by_query, candidates * total - weights.transpose(-1, -2) @ query


def distances(query: Tensor, candidates: Tensor) -> Tensor:
    """``[..., n, m]`` Euclidean distances of ``[..., n, D]`` from ``[..., m, D]``."""
    found: Tensor = Distances.apply(query, candidates)
    return found
