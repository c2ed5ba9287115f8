"""Reference for :func:`dot_attention` in eager torch, with one row per edge and head."""

from __future__ import annotations

import torch
from torch import Tensor


def dot_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    heads: int,
    scale: float,
    to_key: bool,
    to_value: bool,
) -> Tensor:
    """Computes ``dot_attention``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.dot_attention`; edges in any order.
    """
    wide, nodes = torch.promote_types(query.dtype, torch.float32), len(query)

    def parted(rows: Tensor) -> Tensor:
        """Reshapes ``[n, H * C]`` to ``[n, H, C]`` in the accumulation dtype."""
        return rows.to(wide).view(len(rows), heads, rows.size(1) // heads)

    keys, values = parted(key)[src], parted(value)[src]
    if edge is not None:
        rows = parted(edge if code is None else edge.index_select(0, code))
        keys = keys + rows if to_key else keys
        values = values + rows if to_value else values
    score = (parted(query)[dst] * keys).sum(-1) * scale
    largest = score.detach().new_full((nodes, heads), -torch.inf)
    largest = largest.scatter_reduce(0, dst[:, None].expand_as(score), score.detach(), "amax")
    power = (score - largest[dst]).exp()
    share = power / power.new_zeros(nodes, heads).index_add(0, dst, power)[dst]
    out = torch.zeros_like(parted(value)).index_add(0, dst, share[:, :, None] * values)
    return out.reshape(value.shape).to(query.dtype)
