"""Attention among the nodes of each graph by the bucket's path, behind one interface.

Queries, keys and values are rows of nodes, and so is the result, so a layer does not deal with
blocks or the graphs' first nodes. The path follows from the bucket's sizes and from where the layer
runs (:mod:`staticgraph.sizes.attention`); both give the same result, forward and backward, and
zeros on padding nodes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.dropout_sum import draw_seed
from staticgraph.kernels.graph_attention import graph_attention
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.device_choice import device_type
from staticgraph.sizes.attention import AttentionSetting, chosen_path


def setting_of(
    attn: torch.nn.MultiheadAttention, device: str, dtype: torch.dtype, training: bool
) -> AttentionSetting:
    """Collects the properties of a layer and its surroundings that rule the kernel out."""
    extra = "bias_k and bias_v give each graph a key" if attn.bias_k is not None else ""
    if attn.add_zero_attn:
        extra = "add_zero_attn gives each graph a key"
    dropout = attn.dropout if training else 0.0
    name = str(dtype).removeprefix("torch.")
    return AttentionSetting(device, name, attn.head_dim, dropout, extra)


def attend(context: BatchContext, attn: torch.nn.MultiheadAttention, x: Tensor) -> Tensor:
    """``[N, C]`` -> ``[N, C]``: the layer's attention of each node over the nodes of its graph."""
    rows = F.linear(x, attn.in_proj_weight, attn.in_proj_bias)
    setting = setting_of(attn, device_type(rows), rows.dtype, attn.training)
    capacity = context.present.capacity
    if chosen_path(capacity, context.attention, setting)[0] == "kernel":
        out = graph_attention(
            rows,
            context.starts(),
            heads=attn.num_heads,
            longest=capacity.max_graph_nodes,
            p=setting.dropout,
            seed=draw_seed(rows.device) if setting.dropout else None,
        )
    else:
        qkv = rows.unflatten(-1, (3, attn.num_heads, -1))
        out = _dense(context, attn, qkv, setting.dropout).flatten(1)
    return attn.out_proj(out)


def _dense(
    context: BatchContext, attn: torch.nn.MultiheadAttention, qkv: Tensor, dropout: float
) -> Tensor:
    """``[N, 3, heads, D]`` -> ``[N, heads, D]`` through one block as wide as the largest graph."""
    layout = context.dense()
    q, k, v = layout.to_dense(qkv).permute(2, 0, 3, 1, 4).unbind()
    mask = context.once("attendable", lambda: layout.attendable)[:, None, None, :]
    if attn.bias_k is not None and attn.bias_v is not None:
        k, v, mask = (_more(t, b) for t, b in ((k, attn.bias_k), (v, attn.bias_v), (mask, None)))
    if attn.add_zero_attn:
        k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
        mask = _more(mask, None)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return layout.to_nodes(out.transpose(1, 2))


def _more(rows: Tensor, bias: Tensor | None) -> Tensor:
    """Appends one key for every graph: a learned one, or, to a mask, one that all may attend to."""
    if bias is None:
        return F.pad(rows, (0, 1), value=True)
    graphs, heads, _, columns = rows.shape
    return torch.cat([rows, bias.view(1, heads, 1, columns).expand(graphs, -1, -1, -1)], 2)
