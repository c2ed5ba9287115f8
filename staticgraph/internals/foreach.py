"""Lists of tensors written in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Writes each source over its target."""
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


def copies_of(tensors: list[Tensor]) -> Sequence[Tensor]:
    """New tensors with the same numbers."""
    return torch._foreach_mul(tensors, 1)  # pyright: ignore[reportPrivateImportUsage]
