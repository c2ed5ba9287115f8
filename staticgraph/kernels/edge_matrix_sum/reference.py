"""Reference for :func:`edge_matrix_sum` in eager torch, as ``NNConv`` computes it."""

from __future__ import annotations

import torch
from torch import Tensor


def edge_matrix_sum_reference(
    x: Tensor, matrices: Tensor, src: Tensor, dst: Tensor, mean: bool
) -> Tensor:
    """Computes ``edge_matrix_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.edge_matrix_sum`; edges in any order.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = torch.einsum("ek,eko->eo", x.to(wide).index_select(0, src), matrices.to(wide))
    out = rows.new_zeros(len(x), rows.size(1)).index_add(0, dst, rows)
    if mean:
        degree = rows.new_zeros(len(x)).index_add(0, dst, torch.ones_like(dst, dtype=wide))
        out = out / degree.clamp(min=1).unsqueeze(-1)
    return out.to(x.dtype)
