"""Reference for :func:`neighbour_reduce` in eager torch, as PyG's aggregations compute it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.message import message_reference, some_of

ACTIVATIONS = ("none", "relu", "leaky_relu", "silu", "sigmoid")
REDUCTIONS = ("sum", "mean", "min", "max", "var", "std")
# Up to this variance PyG's standard deviation is zero, and has no gradient.
LEAST_VARIANCE = 1e-5


def activated(rows: Tensor, activation: str, slope: float) -> Tensor:
    """Applies one of :data:`ACTIVATIONS` to ``rows``."""
    if activation == "leaky_relu":
        return F.leaky_relu(rows, slope)
    functions = {"relu": torch.relu, "silu": F.silu, "sigmoid": torch.sigmoid}
    return rows if activation == "none" else functions[activation](rows)


def neighbour_reduce_reference(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    nodes: int,
    activation: str,
    slope: float,
    reductions: Sequence[str],
    towers: int,
) -> Tensor:
    """Computes ``neighbour_reduce``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.neighbour_reduce`; edges in any order.
    """
    rows = activated(message_reference(source, target, edge, code, src, dst), activation, slope)
    found = [_reduced(rows, dst, nodes, reduction) for reduction in reductions]
    width = rows.size(1) // towers
    together = torch.stack([one.view(nodes, towers, width) for one in found])
    dtype = some_of(source, target, edge).dtype
    return together.permute(2, 1, 0, 3).reshape(towers, nodes, -1).to(dtype)


def _reduced(rows: Tensor, dst: Tensor, nodes: int, reduction: str) -> Tensor:
    zeros = rows.new_zeros(nodes, rows.size(1))
    if reduction == "sum":
        return zeros.index_add(0, dst, rows)
    if reduction in ("min", "max"):
        index = dst[:, None].expand_as(rows)
        return zeros.scatter_reduce(0, index, rows, f"a{reduction}", include_self=False)
    count = rows.new_zeros(nodes).index_add(0, dst, torch.ones_like(rows[:, 0])).clamp(min=1)
    mean = zeros.index_add(0, dst, rows) / count[:, None]
    if reduction == "mean":
        return mean
    away = (rows - mean.index_select(0, dst)).square()
    variance = zeros.index_add(0, dst, away) / count[:, None]
    if reduction == "var":
        return variance
    out = variance.clamp(min=LEAST_VARIANCE).sqrt()
    return out.masked_fill(out <= math.sqrt(LEAST_VARIANCE), 0.0)
