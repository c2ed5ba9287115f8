"""In what dtype a norm with a sum behind it is given: that of the sum, as torch adds."""

from __future__ import annotations

import torch
from torch import Tensor


def dtype_of(x: Tensor, residual: Tensor | None) -> torch.dtype:
    """Of ``residual + norm(x)``: under autocast ``x`` is narrow and the residual is not."""
    return x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
