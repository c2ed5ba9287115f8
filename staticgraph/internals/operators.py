"""Operators of ATen that are nobody's promise."""

from __future__ import annotations

import torch

__all__ = ["addmm_activation", "efficient_backward", "efficient_forward", "read_number", "to_copy"]

# ReLU in the product's epilogue, on CUDA alone.
addmm_activation = torch.ops.aten._addmm_activation
# Attention over sequences of several lengths, with and without a tape.
efficient_forward = torch.ops.aten._efficient_attention_forward
efficient_backward = torch.ops.aten._efficient_attention_backward
# What reading one number on the host is dispatched as.
read_number = torch.ops.aten._local_scalar_dense.default
# What a change of dtype or device is dispatched as.
to_copy = torch.ops.aten._to_copy
