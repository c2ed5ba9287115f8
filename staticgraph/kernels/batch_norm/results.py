"""Allocates the results of a norm, forward and backward, with the operator's shapes and dtypes.

Works on every device, fake tensors included.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dtype_of(x: Tensor, residual: Tensor | None) -> torch.dtype:
    """Returns the dtype of ``residual + norm(x)``, promoted as torch's addition does.

    Under autocast ``x`` is in half precision and the residual is not.
    """
    return x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)


def results(
    x: Tensor, addend: Tensor | None, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocates rows ``[R, F]``, mean and variance ``[F]`` in the accumulation dtype, and the rows
    plus addend, which are empty without an addend."""
    wide = torch.promote_types(x.dtype, torch.float32)
    mean = x.new_empty(x.size(1), dtype=wide)
    total = x.new_empty(0) if addend is None else torch.empty_like(x)
    return torch.empty_like(x, dtype=dtype_of(x, residual)), mean, torch.empty_like(mean), total


def gradients(
    x: Tensor, weight: Tensor, bias: Tensor, into: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Allocates the gradients of rows, weight and bias, and the row gradient plus ``into``, which
    is empty without ``into``."""
    both = x.new_empty(0) if into is None else torch.empty_like(into)
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias), both
