"""Reference for :func:`pair_score` in eager torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
    wide = torch.promote_types(left.dtype, torch.float32)
    heads, width = weight.shape

    def score(rows: Tensor) -> Tensor:
        """Reduces ``[n, H * C]`` to ``[n, H]``, in the dtype of the operands."""
        active = F.leaky_relu(rows, slope).view(-1, heads, width)
        return (active * weight.to(wide)).sum(-1).to(left.dtype)

    left, right = left.to(wide), right.to(wide)
    rows, loops = left[src] + right[dst], left + right
    rows = rows if edge is None else rows + edge.to(wide)
    return score(rows), score(loops if own is None else loops + own.to(wide))
