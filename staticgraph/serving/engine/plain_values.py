"""Tensors as lists of numbers, for JSON; without torch, which a process that reads bodies does not
import."""

from __future__ import annotations

from typing import Any


def plain(out: Any) -> Any:
    """Replaces tensors by lists of numbers, including those in dicts, lists and tuples."""
    if isinstance(out, dict):
        return {str(key): plain(value) for key, value in out.items()}
    if isinstance(out, list | tuple):
        return [plain(piece) for piece in out]
    return out.tolist() if hasattr(out, "tolist") else out
