"""ATen operators that are not part of torch's public interface."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["addmm_activation", "efficient_backward", "efficient_forward", "read_number", "to_copy"]

# Product with ReLU in its epilogue, on CUDA only.
addmm_activation: OpOverloadPacket[..., Any] = torch.ops.aten._addmm_activation
# Memory-efficient attention over sequences of different lengths, forward and backward.
efficient_forward: OpOverloadPacket[..., Any] = torch.ops.aten._efficient_attention_forward
efficient_backward: OpOverloadPacket[..., Any] = torch.ops.aten._efficient_attention_backward
# The operator as which reading one number on the host is dispatched.
read_number: OpOverload[..., Any] = torch.ops.aten._local_scalar_dense.default
# The operator as which a change of dtype or device is dispatched.
to_copy: OpOverloadPacket[..., Any] = torch.ops.aten._to_copy
