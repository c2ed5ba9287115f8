"""Reference for the segment reductions in eager torch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def segment_sum_reference(values: Tensor, ptr: Tensor, mean: bool) -> Tensor:
    """Computes ``segment_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.segment_sum`.
    """
    wide = torch.promote_types(values.dtype, torch.float32)
    rows = torch.arange(len(values), device=values.device)
    segment = torch.searchsorted(ptr, rows, right=True) - 1
    out = values.new_zeros(len(ptr) - 1, values.size(1), dtype=wide)
    out = out.index_add(0, segment, values.to(wide))
    if mean:
        out = out / ptr.diff().clamp(min=1).to(wide).unsqueeze(-1)
    return out.to(values.dtype)


def segment_max_reference(values: Tensor, ptr: Tensor) -> Tensor:
    """Computes ``segment_max`` with torch's ``scatter_reduce``, differentiable, on any device.

    The way ties share a gradient is that of ``scatter_reduce``. Arguments as in
    :func:`staticgraph.kernels.segment_max`.
    """
    rows = torch.arange(len(values), device=values.device)
    segment = (torch.searchsorted(ptr, rows, right=True) - 1)[:, None].expand_as(values)
    out = values.new_zeros(len(ptr) - 1, values.size(1))
    return out.scatter_reduce(0, segment, values, "amax", include_self=False)


def segment_softmax_reference(values: Tensor, ptr: Tensor) -> Tensor:
    """Computes ``segment_softmax``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.segment_softmax`.
    """
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    parts = [wide[a:b].softmax(0) for a, b in pairwise(ptr.tolist())]
    return torch.cat(parts).to(values.dtype)
