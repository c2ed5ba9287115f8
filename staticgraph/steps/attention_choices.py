"""The paths of a model's attention in each bucket."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from staticgraph.nn.attention.paths import setting_of
from staticgraph.nn.context.batch_context import context_held
from staticgraph.sizes.attention import AttentionPath, AttentionRow, attention_path
from staticgraph.sizes.capacity import Capacity


def attention_choices(
    model: torch.nn.Module,
    capacities: Sequence[Capacity],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    training: bool,
    first_bucket: int = 0,
) -> tuple[AttentionRow, ...]:
    """Returns the path that each converted layer with a choice of paths takes in each bucket.

    Args:
        model: converted.
        capacities: one per bucket, from ``first_bucket`` on.
        device: the model's device.
        dtype: the dtype of autocast; None for the layer's own.
        training: whether attention weights are dropped out.
        first_bucket: the number of the first bucket.
    """
    layers: dict[tuple[int, AttentionPath], list[str]] = {}
    for name, module in model.named_modules():
        attn = getattr(module, "attn", None)
        if not hasattr(module, "_staticgraph_attends"):
            continue
        if not isinstance(attn, torch.nn.MultiheadAttention):
            continue
        requested = context_held(module).attention
        setting = setting_of(attn, device.type, dtype or attn.out_proj.weight.dtype, training)
        if requested == "kernel" and setting.forbids_kernel:
            setting = setting._replace(dropout=0.0)  # used in evaluation only
        for bucket, capacity in enumerate(capacities, first_bucket):
            path = attention_path(capacity, requested, setting)
            layers.setdefault((bucket, path), []).append(name)
    return tuple(
        AttentionRow(bucket, tuple(names), *path)
        for (bucket, path), names in sorted(layers.items(), key=lambda item: item[0][0])
    )
