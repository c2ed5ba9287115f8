"""The paths of a model's attention in each bucket, with the costs they were compared by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from staticgraph.nn.attention.paths import setting_of
from staticgraph.nn.context.batch_context import BatchContext, context_held
from staticgraph.sizes.attention import AttentionPath, pooling_path
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.attention_row import AttentionRow


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
    found: dict[tuple[int, AttentionPath], list[str]] = {}
    for name, context, attn in attending_layers(model):
        for bucket, capacity in enumerate(capacities, first_bucket):
            if attn is None:
                path = pooling_path(capacity, context.attention.requested)
            else:
                own = attn.out_proj.weight.dtype if dtype is None else dtype
                setting = setting_of(attn, device.type, own, training, context.kernels)
                if setting.forbids(context.attention.requested):
                    setting = setting._replace(dropout=0.0)  # used in evaluation only
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
    """Yields the layers with a choice of paths; attention is None for pooling by seed vectors."""
    for name, module in model.named_modules():
        attends = getattr(module, "_staticgraph_attends", None)
        if attends == "seeds":
            yield name, context_held(module), None
        elif attends and isinstance(attn := module.attn, torch.nn.MultiheadAttention):
            yield name, context_held(module), attn
