"""Reference for :func:`table_sum` in eager torch: look up each column in its table, and sum."""

from __future__ import annotations

import torch
from torch import Tensor


def table_sum_reference(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Computes ``table_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.table_sum`.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    rows = weight.to(wide).index_select(0, (index + offsets[:-1]).view(-1))
    return rows.view(*index.shape, weight.size(1)).sum(1).to(weight.dtype)
