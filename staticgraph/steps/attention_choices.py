"""The paths of a model's attention, bucket by bucket, with what they were compared by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from staticgraph.nn.aggr.set_transformer import (
    StaticGraphMultisetTransformer,
    StaticSetTransformerAggregation,
    pooling_path,
)
from staticgraph.nn.attention.paths import setting_of
from staticgraph.nn.context.batch_context import BatchContext, context_held
from staticgraph.nn.conv.gps import StaticGPSConv
from staticgraph.sizes.attention import AttentionPath
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.attention_row import AttentionRow


def attention_choices(
    model: torch.nn.Module,
    capacities: Sequence[Capacity],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    training: bool,
    compiled: bool,
    first_bucket: int = 0,
) -> tuple[AttentionRow, ...]:
    """How each converted layer with a choice of paths goes in each bucket.

    Args:
        model: converted.
        capacities: of the buckets, from ``first_bucket`` on.
        device: of the model.
        dtype: of autocast; the layer's own where None.
        training: whether weights are dropped.
        compiled: whether the step is compiled.
    """
    found: dict[tuple[int, AttentionPath], list[str]] = {}
    for name, context, attn in attending_layers(model):
        for bucket, capacity in enumerate(capacities, first_bucket):
            if attn is None:
                path = pooling_path(capacity, context.attention.asked)
            else:
                own = attn.out_proj.weight.dtype if dtype is None else dtype
                setting = setting_of(attn, device.type, own, training, compiled, context.kernels)
                if setting.forbids(context.attention.asked):
                    setting = setting._replace(dropout=0.0)  # then it was only evaluated
                path = context.attention.path_in(capacity, setting)
            found.setdefault((bucket, path), []).append(name)
    return tuple(
        AttentionRow(
            bucket,
            tuple(layers),
            path.name,
            path.entries,
            path.pairs,
            dict(path.costs),
            dict(path.ruled_out),
            path.reason,
        )
        for (bucket, path), layers in sorted(found.items(), key=lambda item: item[0][0])
    )


def attending_layers(
    model: torch.nn.Module,
) -> Iterator[tuple[str, BatchContext, torch.nn.MultiheadAttention | None]]:
    """Layers with a choice of paths; a pool by seed vectors has None for its attention."""
    for name, module in model.named_modules():
        if isinstance(module, StaticSetTransformerAggregation | StaticGraphMultisetTransformer):
            yield name, context_held(module), None
        elif isinstance(module, StaticGPSConv) and isinstance(
            module.attn, torch.nn.MultiheadAttention
        ):
            yield name, context_held(module), module.attn
