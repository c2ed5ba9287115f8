"""Reference for ``head_products`` in torch operations."""

from __future__ import annotations

import torch
from torch import Tensor


def head_products_reference(rows: Tensor, weight: Tensor) -> Tensor:
    """Computes :func:`staticgraph.kernels.head_products` as one matrix product per head."""
    _, heads, columns = weight.shape
    by_head = rows.view(-1, heads, columns).transpose(0, 1)
    dtype = torch.promote_types(rows.dtype, weight.dtype)
    return torch.bmm(by_head.to(dtype), weight.permute(1, 2, 0).to(dtype))
