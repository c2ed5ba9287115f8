"""``pair_score`` as a torch operator: reference, registration, shapes.

GATv2 applies the nonlinearity between the sum of two rows and the product with the attention
vector, so a score is no longer the sum of one number per node, and stock code allocates four arrays
of ``[E, H * C]`` for it. Here a score is computed in registers, and recomputed in backward.

Source: Brody, Alon and Yahav 2022, arXiv 2105.14491.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.pair_score import cpu
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import common_dtype, contiguous, empty_like


def pair_score_reference(
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """Computes ``pair_score``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.pair_score`;
    edges in any order.
    """
    dtype, wide = left.dtype, torch.promote_types(left.dtype, torch.float32)
    heads, width = weight.shape

    def score(rows: Tensor) -> Tensor:
        """Reduces ``[n, H * C]`` to ``[n, H]``, in the dtype of the operands."""
        active = F.leaky_relu(rows, slope).view(-1, heads, width)
        return (active * weight.to(wide)).sum(-1).to(dtype)

    left, right = left.to(wide), right.to(wide)
    rows, loops = left[src] + right[dst], left + right
    rows = rows if edge is None else rows + edge.to(wide)
    return score(rows), score(loops if own is None else loops + own.to(wide))


def _fake(left, right, weight, edge, own, edges, slope):
    heads = weight.size(0)
    return left.new_empty(edges[0].size(0), heads), left.new_empty(left.size(0), heads)


_OPERANDS = (
    "Tensor left, Tensor right, Tensor weight, Tensor? edge, Tensor? own, Tensor[] edges, "
    "float slope"
)
_pair_score = operator(
    f"pair_score({_OPERANDS}) -> (Tensor score, Tensor loop)",
    cpu=cpu.forward,
    cuda="pair_score.gpu:forward",
    fake=_fake,
    backward=operator(
        f"pair_score_backward(Tensor grad_score, Tensor grad_loop, {_OPERANDS}) "
        "-> (Tensor dleft, Tensor dright, Tensor dweight, Tensor dedge, Tensor down)",
        cpu=cpu.backward,
        cuda="pair_score.gpu:backward",
        fake=lambda grad, loop, left, right, weight, edge, own, *_: (
            *map(torch.empty_like, (left, right, weight)),
            *(empty_like(value, left) for value in (edge, own)),
        ),
    ),
)


def pair_score(
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    edges: Edges,
    *,
    edge: Tensor | None = None,
    own: Tensor | None = None,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """Computes ``weight[h] . leaky_relu(left[src] + right[dst] + edge)`` for every edge and head.

    Args:
        left, right: ``[N, H * C]``, a node's row as a source and as a destination; half precisions
            are accumulated in float32.
        weight: ``[H, C]``.
        edges: their ends and pointers.
        edge: ``[E, H * C]``, or None for nothing.
        own: ``[N, H * C]``, replaces ``edge`` for a node's self-loop; None for nothing.
        slope: of the leaky ReLU below zero.

    Returns:
        ``[E, H]`` for the edges and ``[N, H]`` for the self-loops, in the promoted dtype of the
        rows; differentiable once in ``left``, ``right``, ``weight``, ``edge`` and ``own``. Bitwise
        deterministic.
    """
    dtype = common_dtype(left, right, edge, own)
    cast = [None if value is None else value.to(dtype) for value in (left, right, edge, own)]
    left, right, edge, own = contiguous(*cast)
    return _pair_score(left, right, weight.contiguous(), edge, own, edges, slope)
