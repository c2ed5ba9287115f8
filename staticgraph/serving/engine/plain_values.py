"""Tensors as lists of numbers, which JSON can say; without torch, since a process that reads bodies
needs none."""

from __future__ import annotations

from typing import Any


def plain(out: Any) -> Any:
    """Tensors as lists of numbers, in whatever collects them."""
    if isinstance(out, dict):
        return {str(key): plain(value) for key, value in out.items()}
    if isinstance(out, list | tuple):
        return [plain(piece) for piece in out]
    return out.tolist() if hasattr(out, "tolist") else out
