"""Operators of ATen that are nobody's promise."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["addmm_activation", "efficient_backward", "efficient_forward", "read_number", "to_copy"]

# ReLU in the product's epilogue, on CUDA alone.
addmm_activation: OpOverloadPacket[..., Any] = torch.ops.aten._addmm_activation
# Attention over sequences of several lengths, with and without a tape.
efficient_forward: OpOverloadPacket[..., Any] = torch.ops.aten._efficient_attention_forward
efficient_backward: OpOverloadPacket[..., Any] = torch.ops.aten._efficient_attention_backward
# What reading one number on the host is dispatched as.
read_number: OpOverload[..., Any] = torch.ops.aten._local_scalar_dense.default
# What a change of dtype or device is dispatched as.
to_copy: OpOverloadPacket[..., Any] = torch.ops.aten._to_copy
