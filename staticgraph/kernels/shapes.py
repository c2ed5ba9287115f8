"""Shapes and dtypes that the operators' rules for results share; on every device, fake ones too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def wide_dtype(*values: Tensor | None) -> torch.dtype:
    """Returns the accumulation dtype of operands: float32, or float64 if one of them is."""
    return torch.promote_types(common_dtype(*values), torch.float32)


def common_dtype(*values: Tensor | None) -> torch.dtype:
    """Returns the promoted dtype of operands, of those that are not None."""
    dtype = None
    for value in values:
        if value is not None and value.dtype is not dtype:
            dtype = value.dtype if dtype is None else torch.promote_types(dtype, value.dtype)
    assert dtype is not None
    return dtype


def contiguous(*values: Tensor | None) -> list[Any]:
    """Returns operands without gaps."""
    return [None if value is None else value.contiguous() for value in values]
