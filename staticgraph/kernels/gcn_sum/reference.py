"""Reference for :func:`gcn_degrees` and :func:`gcn_sum` in eager torch."""

from __future__ import annotations

import torch
from torch import Tensor


def gcn_degrees_reference(
    src: Tensor, dst: Tensor, nodes: int, weight: Tensor | None, fill: float, loops: bool
) -> tuple[Tensor, Tensor]:
    """Computes ``gcn_degrees`` in eager torch.

    Arguments as in :func:`staticgraph.kernels.gcn_sum.gcn_degrees`; edges may be in any order.
    """
    weights = torch.ones(len(src), dtype=torch.float64) if weight is None else weight.double()
    own = weights.new_zeros(nodes)
    if loops:
        same = src == dst
        own = (own + fill).index_put((dst[same],), weights[same])
        weights = torch.where(same, 0, weights)
    degree = own.index_add(0, dst, weights)
    none = degree == 0
    return degree.masked_fill(none, 1).pow(-0.5).masked_fill(none, 0), own


def gcn_sum_reference(
    x: Tensor,
    bias: Tensor | None,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    src: Tensor,
    dst: Tensor,
    loops: bool,
) -> Tensor:
    """Computes ``gcn_sum``; differentiable.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.gcn_sum.gcn_sum`; edges in any order.
    """
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    root, own = root.to(values), own.to(values)
    share = root[src] * root[dst]
    share = share if weight is None else share * weight.to(values)
    if loops:
        share = torch.where(src == dst, 0, share)
    out = (own * root * root)[:, None] * values
    out = out.index_add(0, dst, share[:, None] * values[src])
    return (out if bias is None else out + bias.to(values)).to(x.dtype)
