"""Copies of lists of tensors in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["copies_of", "copy_all"]

# Copies each tensor of the second list to its counterpart in the first. Not wrapped, since a
# wrapper would add a call to every replay.
copy_all: Callable[[list[Tensor], list[Tensor]], None] = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


def copies_of(tensors: list[Tensor]) -> Sequence[Tensor]:
    """Returns new tensors with the same values."""
    return torch._foreach_mul(tensors, 1)  # pyright: ignore[reportPrivateImportUsage]
