"""Reference for :func:`batch_norm` in eager torch: BatchNorm over the first ``count`` rows."""

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
    """Computes ``batch_norm``; differentiable, on any device.

    Statistics are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.batch_norm`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    real = (torch.arange(len(x), device=x.device) < count).unsqueeze(-1)
    values = torch.where(real, x.to(wide), 0)
    rows = count.clamp(min=1).to(wide)
    mean = values.sum(0) / rows
    var = torch.where(real, values - mean, 0).square().sum(0) / rows
    out = normalised(x, mean, var, residual, weight, bias, count, eps, relu)
    return out.to(x.dtype), mean, var


def normalised(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    eps: float,
    relu: bool,
) -> Tensor:
    """Normalises rows with known statistics, in the dtype of the statistics."""
    wide = mean.dtype
    real = (torch.arange(len(x), device=x.device) < count).unsqueeze(-1)
    centred = torch.where(real, x.to(wide) - mean, 0)
    out = centred * (var + eps).rsqrt() * weight.to(wide) + bias.to(wide)
    out = torch.where(real, out.relu() if relu else out, 0)
    return out if residual is None else out + residual.to(wide)
