"""Tensors that have a shape, a dtype and a device, and no memory."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

__all__ = ["FakeTensor", "FakeTensorMode", "QuickFakeMode", "ask_device"]

# What looking at a fake tensor's device is dispatched as.
ask_device = torch.ops.prim.device.default

SEQUENCES = frozenset((list, tuple, torch.Size))
PLAIN = frozenset(
    (int, float, bool, str, NoneType, torch.dtype, torch.device, torch.layout, torch.memory_format)
)


class QuickFakeMode(FakeTensorMode):
    """A mode whose steps take half as long.

    torch keeps what an operation gave, by its arguments, and to name these takes it longer than all
    the rest. Here dense tensors are named by what tells them apart and numbers by themselves; torch
    names whatever else there is.
    """

    def _cache_key(self, state: Any, func: Any, args: Any, kwargs: Any) -> Any:
        key = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        if self._named(key, args) and self._named(key, kwargs) and self._named(key, kwargs.values()):
            return tuple(key)
        return super()._cache_key(state, func, args, kwargs)

    def _named(self, key: list[Any], values: Iterable[Any]) -> bool:
        """Appends the names of values; False where one of them has none."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if (
                    value.fake_mode is not self
                    or value.constant is not None
                    or value.layout is not torch.strided
                    or value.is_quantized
                    or value.is_complex()
                    or value.is_neg()
                ):
                    return False
                key += (
                    value.dtype,
                    value.shape,
                    value.stride(),
                    value.storage_offset(),
                    value.untyped_storage().nbytes(),
                    value.requires_grad,
                    value.fake_device,
                )
            elif kind in PLAIN:
                key += (kind, value)
            elif kind in SEQUENCES:
                key += (kind, len(value))
                if not self._named(key, value):
                    return False
            else:
                return False
        return True
