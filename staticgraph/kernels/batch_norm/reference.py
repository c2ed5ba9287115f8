"""What :func:`batch_norm` means, in eager torch: BatchNorm over the first ``count`` rows."""

from __future__ import annotations

import torch
from torch import Tensor


def batch_norm_reference(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiable, on any device; statistics in float32 (float64 for float64).

    Args: as :func:`staticgraph.kernels.batch_norm`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    real = (torch.arange(len(x), device=x.device) < count).unsqueeze(-1)
    values = torch.where(real, x.to(wide), 0)
    rows = count.clamp(min=1).to(wide)
    mean = values.sum(0) / rows
    centred = torch.where(real, values - mean, 0)
    var = centred.square().sum(0) / rows
    out = centred * (var + eps).rsqrt() * weight.to(wide) + bias.to(wide)
    out = out.relu() if relu else out
    out = torch.where(real, out, 0)
    if residual is not None:
        out = out + residual.to(wide)
    return out.to(x.dtype), mean, var
