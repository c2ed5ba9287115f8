"""Lists of tensors written in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["copies_of", "copy_all"]

# Writes each tensor of the second list over its target in the first; itself, since a call between
# would be one more in every replay.
copy_all: Callable[[list[Tensor], list[Tensor]], None] = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


def copies_of(tensors: list[Tensor]) -> Sequence[Tensor]:
    """New tensors with the same numbers."""
    return torch._foreach_mul(tensors, 1)  # pyright: ignore[reportPrivateImportUsage]
