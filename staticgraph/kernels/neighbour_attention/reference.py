"""Reference for :func:`neighbour_attention` in eager torch, with one row per edge and head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def neighbour_attention_reference(
    x: Tensor,
    pair: Tensor | None,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    heads: int,
    slope: float,
    loops: bool,
) -> Tensor:
    """Computes ``neighbour_attention``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.neighbour_attention`; edges in any order.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    nodes, score = len(x), x.new_zeros(len(src), heads, dtype=wide)
    everyone = torch.arange(nodes, device=x.device)
    if edge is not None:
        score = score + edge.to(wide)
    if loops:
        kept = src != dst
        mine = score.new_zeros(nodes, heads) if own is None else own.to(wide)
        score = torch.cat([score[kept], mine])
        src, dst = torch.cat([src[kept], everyone]), torch.cat([dst[kept], everyone])
    if pair is not None:
        score = score + (pair[:, src, 0] + pair[:, dst, 1]).t().to(wide)
    score = F.leaky_relu(score, slope)
    largest = score.detach().new_full((nodes, heads), -torch.inf)
    largest = largest.scatter_reduce(0, dst[:, None].expand_as(score), score.detach(), "amax")
    power = (score - largest[dst]).exp()
    share = power / power.new_zeros(nodes, heads).index_add(0, dst, power)[dst]
    rows = x.to(wide).view(nodes, heads, -1)
    out = torch.zeros_like(rows).index_add(0, dst, share[:, :, None] * rows[src])
    return out.reshape(x.shape).to(x.dtype)
