"""The choice of attention's kernel: without a device to query, torch uses explicit weights.

What is emulated (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp): flash attention in half
precision without a mask; else the memory-efficient kernel; explicit weights where rows are not
aligned to 16 bytes, in float64, and where the operands are not ``[batch, heads, rows, columns]``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from staticgraph.dryrun.stubs.point import PatchPoints
from staticgraph.dryrun.targets import TargetDevice

SYMBOL = "torch.nn.functional:scaled_dot_product_attention"
WHY = "torch asks the device which kernel to take"
ALIGNED_BYTES = 16
FLASH_MAX_WIDTH = 256
EMULATED = (
    "the kernel of scaled_dot_product_attention is chosen by rule: flash in half precision without "
    "a mask, else memory-efficient"
)


def install(points: PatchPoints, target: TargetDevice) -> None:
    """Patches attention to choose its kernel as on a device."""
    real = points.real(SYMBOL, WHY)
    aten = torch.ops.aten

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Like torch's function, but with the fused kernel that the target would choose, if any."""
        width = query.shape[-1]
        aligned = (width * query.dtype.itemsize) % ALIGNED_BYTES == 0
        if (
            query.device.type != "cuda"
            or query.dim() != 4
            or query.dtype == torch.float64
            or not aligned
        ):
            return real(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        if attn_mask is None and query.dtype != torch.float32 and width <= FLASH_MAX_WIDTH:
            return aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale
            )[0]
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype)
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
        )[0]

    points.put(SYMBOL, attention, WHY)
