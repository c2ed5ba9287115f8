"""What :func:`dropout_sum` means, in eager torch, given which values are kept."""

from __future__ import annotations

from torch import Tensor


def dropout_sum_reference(
    x: Tensor, residual: Tensor | None, kept: Tensor, p: float, relu: bool
) -> Tensor:
    """Differentiable, on any device.

    Args:
        kept: ``[R, F]`` bool, as :func:`staticgraph.kernels.dropout_sum.kept` gives it.
    """
    value = (x.relu() if relu else x) * kept.to(x.dtype) / (1 - p)
    return value if residual is None else residual + value
