"""What :func:`segment_max` means, in eager torch."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_max_reference(values: Tensor, ptr: Tensor) -> Tensor:
    """Differentiable, on any device; torch's own ``scatter_reduce``, from where equal values share
    a gradient.

    Args: as :func:`staticgraph.kernels.segment_max`.
    """
    rows = torch.arange(len(values), device=values.device)
    segment = (torch.searchsorted(ptr, rows, right=True) - 1)[:, None].expand_as(values)
    out = values.new_zeros(len(ptr) - 1, values.size(1))
    return out.scatter_reduce(0, segment, values, "amax", include_self=False)
