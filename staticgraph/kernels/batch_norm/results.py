"""Memory for what a norm gives, forward and backward: the shapes and dtypes of the operator, on
every device and where there is none."""

from __future__ import annotations

import torch
from torch import Tensor


def dtype_of(x: Tensor, residual: Tensor | None) -> torch.dtype:
    """Of ``residual + norm(x)``, that of the sum, as torch adds: under autocast ``x`` is narrow and
    the residual is not."""
    return x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)


def results(
    x: Tensor, addend: Tensor | None, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows ``[R, F]``, mean and variance ``[F]`` in the precision of the sums, and the rows with
    their addend, empty without one."""
    wide = torch.promote_types(x.dtype, torch.float32)
    mean = x.new_empty(x.size(1), dtype=wide)
    total = x.new_empty(0) if addend is None else torch.empty_like(x)
    return torch.empty_like(x, dtype=dtype_of(x, residual)), mean, torch.empty_like(mean), total


def gradients(
    x: Tensor, weight: Tensor, bias: Tensor, into: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of rows, weight and bias, and the rows' with ``into``, empty without it."""
    both = x.new_empty(0) if into is None else torch.empty_like(into)
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias), both
