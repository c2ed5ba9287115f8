"""Reference for :func:`dropout_sum` in eager torch, given the mask of kept values."""

from __future__ import annotations

from torch import Tensor


def dropout_sum_reference(
    x: Tensor, residual: Tensor | None, kept: Tensor, p: float, relu: bool
) -> Tensor:
    """Computes ``dropout_sum``; differentiable, on any device.

    Args:
        kept: ``[R, F]`` bool, from :func:`staticgraph.kernels.dropout_sum.kept`.
    """
    value = (x.relu() if relu else x) * kept.to(x.dtype) / (1 - p)
    return value if residual is None else residual + value
