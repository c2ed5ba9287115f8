"""The tensors in what a model gives: one, or tuples, lists and dicts of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a tensor, or of a tuple, list or dict of such."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
