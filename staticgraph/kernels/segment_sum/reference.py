"""What :func:`segment_sum` means, in eager torch: add up the rows of each segment."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_sum_reference(values: Tensor, ptr: Tensor, mean: bool) -> Tensor:
    """Differentiable, on any device; sums in float32 (float64 for float64).

    Args: as :func:`staticgraph.kernels.segment_sum`.
    """
    wide = torch.promote_types(values.dtype, torch.float32)
    rows = torch.arange(len(values), device=values.device)
    segment = torch.searchsorted(ptr, rows, right=True) - 1
    out = values.new_zeros(len(ptr) - 1, values.size(1), dtype=wide)
    out = out.index_add(0, segment, values.to(wide))
    if mean:
        out = out / ptr.diff().clamp(min=1).to(wide).unsqueeze(-1)
    return out.to(values.dtype)
