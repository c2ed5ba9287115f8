"""Allocates the results of a norm, forward and backward, with the operator's shapes and dtypes.

Works on every device, fake tensors included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.shapes import common_dtype, empty_like, wide_dtype


def results(
    x: Tensor, addend: Tensor | None, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocates rows ``[R, F]``, mean and variance ``[F]`` in the accumulation dtype, and the rows
    plus addend, which are empty without an addend."""
    mean = x.new_empty(x.size(1), dtype=wide_dtype(x))
    total = x.new_empty(0) if addend is None else torch.empty_like(x)
    return torch.empty_like(x, dtype=common_dtype(x, residual)), mean, torch.empty_like(mean), total


def gradients(
    x: Tensor, weight: Tensor, bias: Tensor, into: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocates the gradients of rows, weight and bias, and the row gradient plus ``into``, which
    is empty without ``into``."""
    dx, dweight, dbias = map(torch.empty_like, (x, weight, bias))
    return dx, dweight, dbias, empty_like(into, x)
