"""What :func:`segment_softmax` means, in eager torch: one softmax a segment."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def segment_softmax_reference(values: Tensor, ptr: Tensor) -> Tensor:
    """Differentiable, on any device; sums in float32 (float64 for float64).

    Args: as :func:`staticgraph.kernels.segment_softmax`.
    """
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    parts = [wide[a:b].softmax(0) for a, b in pairwise(ptr.tolist())]
    return torch.cat(parts).to(values.dtype)
