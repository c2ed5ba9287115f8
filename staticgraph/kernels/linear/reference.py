"""What :func:`linear` means: torch's own linear layer, and ReLU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Differentiable, on any device. Args: as :func:`staticgraph.kernels.linear`."""
    out = F.linear(x, weight, bias)
    return out.relu() if relu else out
