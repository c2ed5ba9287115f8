"""Reference for :func:`linear`: torch's own linear layer, and ReLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    relu: bool,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes ``linear``; differentiable, on any device.

    Arguments as in :func:`staticgraph.kernels.linear`.
    """
    dtype = dtype or x.dtype
    out = F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return out.relu() if relu else out
