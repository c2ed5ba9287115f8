"""Reference for :func:`linear_statistics`: torch's own linear layer, and statistics of its
result."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm.partials import partials_reference
from staticgraph.kernels.linear.reference import linear_reference


def linear_statistics_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: Tensor,
    relu: bool,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes ``linear_statistics`` on any device; the first result is
    differentiable.

    Arguments as in :func:`staticgraph.kernels.linear_statistics`.
    """
    out = linear_reference(x, weight, bias, relu, dtype)
    return out, partials_reference(out.detach(), count)
