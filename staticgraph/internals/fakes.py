"""Tensors with a shape, a dtype and a device, but without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

__all__ = ["FakeTensor", "FakeTensorMode", "ask_device"]

# The operator as which reading a fake tensor's device is dispatched.
ask_device: torch._ops.OpOverload[..., Any] = torch.ops.prim.device.default
