"""Reference for :func:`graph_attention` in eager torch: all pairs of nodes, most of them masked."""

from __future__ import annotations

import torch
from torch import Tensor


def graph_attention_reference(
    rows: Tensor, starts: Tensor, heads: int, kept: Tensor | None = None, p: float = 0.0
) -> Tensor:
    """Computes ``graph_attention``; differentiable, on any device.

    It needs memory for ``heads * N * N`` entries.

    Args:
        rows: ``[N, 3 * H * D]``: queries, keys and values, head by head.
        starts: ``[G + 1]``, ascending from 0.
        heads: ``H``.
        kept: ``[H, N, N]`` bool, the weights that dropout keeps, from
            :func:`staticgraph.kernels.graph_attention.kept`; None keeps all.
        p: fraction of the weights that is dropped.
    """
    nodes = len(rows)
    place = torch.arange(nodes, device=rows.device)
    owner = torch.searchsorted(starts.to(place.dtype), place, right=True)
    real = place < starts[-1]
    together = (owner[:, None] == owner) & real
    q, k, v = rows.view(nodes, 3, heads, -1).permute(1, 2, 0, 3)
    scores = q @ k.transpose(1, 2) * q.size(-1) ** -0.5
    weights = scores.masked_fill(~together, -torch.inf).masked_fill(~real[:, None], 0).softmax(-1)
    if kept is not None:
        weights = weights * kept / (1 - p)
    out = torch.where(real[:, None], weights @ v, 0)
    return out.transpose(0, 1).reshape(nodes, -1)
