"""Attention among the nodes of each graph by any of the bucket's paths, behind one interface.

Queries, keys and values are rows of nodes, and so is the result, so a layer does not deal with
blocks or sequence starts. The path follows from the bucket's sizes and from where the layer
runs (:mod:`staticgraph.sizes.attention`); every path gives the same result as ``dense``, forward
and backward, and zeros on padding nodes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.dropout_sum import draw_seed
from staticgraph.kernels.graph_attention import graph_attention
from staticgraph.kernels.head_blocks import nodes_of_blocks, qkv_blocks
from staticgraph.kernels.varlen_attention import varlen_attention
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.choosing import device_type
from staticgraph.nn.context.leaf import leaf, leaves
from staticgraph.nn.context.size_classes import ClassedLayout
from staticgraph.sizes.attention import AttentionSetting


def setting_of(
    attn: torch.nn.MultiheadAttention,
    device: str,
    dtype: torch.dtype,
    training: bool,
    kernels: bool = False,
) -> AttentionSetting:
    """Collects the properties of a layer and its surroundings that rule paths out."""
    extra = "bias_k and bias_v give each graph a key" if attn.bias_k is not None else ""
    if attn.add_zero_attn:
        extra = "add_zero_attn gives each graph a key"
    return AttentionSetting(
        device,
        str(dtype).removeprefix("torch."),
        attn.head_dim,
        attn.dropout if training else 0.0,
        extra,
        kernels,
        training,
    )


def attend(context: BatchContext, attn: torch.nn.MultiheadAttention, x: Tensor) -> Tensor:
    """``[N, C]`` -> ``[N, C]``: the layer's attention of each node over the nodes of its graph."""
    rows = F.linear(x, attn.in_proj_weight, attn.in_proj_bias)
    setting = setting_of(
        attn,
        device_type(rows) if context.kernels else rows.device.type,
        rows.dtype,
        attn.training,
        context.kernels or leaves(),
    )
    name = context.attention.path_in(context.present.capacity, setting).name
    if name == "kernel":
        seed = draw_seed(rows.device) if setting.dropout else None
        return attn.out_proj(by_kernel(context, attn, rows, setting.dropout, seed, 0))
    plain = attn.bias_k is None and not attn.add_zero_attn
    if plain and leaves() and name in ("dense", "size-classed"):
        return attn.out_proj(by_blocks(context, name, attn, rows, setting.dropout))
    qkv = rows.unflatten(-1, (3, attn.num_heads, -1))
    if name == "varlen":
        out = _varlen(context, qkv)
    else:
        out = _blocked(context, name, attn, qkv, setting.dropout)
    return attn.out_proj(out.flatten(1))


def by_kernel(
    context: BatchContext,
    attn: torch.nn.MultiheadAttention,
    rows: Tensor,
    dropout: float,
    seed: Tensor | None,
    site: int,
) -> Tensor:
    """``[N, 3 * C]`` -> ``[N, C]`` by this library's own kernel, zero on padding nodes."""
    return graph_attention(
        rows,
        context.starts(),
        heads=attn.num_heads,
        longest=context.present.capacity.max_graph_nodes,
        p=dropout,
        seed=seed,
        site=site,
    )


def by_blocks(
    context: BatchContext,
    name: str,
    attn: torch.nn.MultiheadAttention,
    rows: Tensor,
    dropout: float,
) -> Tensor:
    """``[N, 3 * C]`` -> ``[N, C]``: like :func:`_blocked`, with this library's own gathers."""
    layout = context.classed(name)
    masks = context.once(("attention masks", name, rows.dtype), lambda: _added(layout, rows.dtype))
    places = (layout.node_of_place, layout.place_of_node)
    shapes = [(block.graphs, block.width) for block in layout.blocks]
    return attend_blocks(rows, *places, masks, shapes, attn.num_heads, dropout)


@leaf
def attend_blocks(
    rows: Tensor,
    node_of_place: Tensor,
    place_of_node: Tensor,
    masks: list[Tensor],
    shapes: list[tuple[int, int]],
    heads: int,
    dropout: float,
) -> Tensor:
    """Attention of ``rows`` ``[N, 3 * C]`` in blocks of ``shapes`` (graphs, width), each with a
    mask that is added to its scores; returns ``[N, C]``."""
    blocks = qkv_blocks(rows, node_of_place, place_of_node, shapes, heads)

    def weighed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """``[graphs, heads, width, D]`` each, through torch's attention with dropout."""
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)

    outs = [weighed(*qkv, mask) for qkv, mask in zip(blocks, masks, strict=True)]
    return nodes_of_blocks(outs, place_of_node, node_of_place)


def _added(layout: ClassedLayout, dtype: torch.dtype) -> list[Tensor]:
    """A layout's masks in the additive form, made once for all layers: attention would convert a
    boolean mask in every layer."""
    masks = [attendable[:, None, None, :] for attendable in layout.attendable]
    return [torch.zeros_like(m, dtype=dtype).masked_fill(~m, -torch.inf) for m in masks]


def _blocked(
    context: BatchContext,
    name: str,
    attn: torch.nn.MultiheadAttention,
    qkv: Tensor,
    dropout: float,
) -> Tensor:
    """``[N, 3, heads, D]`` -> ``[N, heads, D]`` through one block or several."""
    layout = context.classed(name)

    def attended(block: Tensor, attendable: Tensor) -> Tensor:
        """One block, ``[graphs, width, 3, heads, D]`` to ``[graphs, width, heads, D]``."""
        q, k, v = block.permute(2, 0, 3, 1, 4).unbind()
        mask = attendable[:, None, None, :]
        if attn.bias_k is not None and attn.bias_v is not None:
            k, v, mask = (
                _more(t, b) for t, b in ((k, attn.bias_k), (v, attn.bias_v), (mask, None))
            )
        if attn.add_zero_attn:
            k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
            mask = _more(mask, None)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        return out.transpose(1, 2)

    blocks = zip(layout.to_blocks(qkv), layout.attendable, strict=True)
    return layout.to_nodes([attended(rows, mask) for rows, mask in blocks])


def _more(rows: Tensor, bias: Tensor | None) -> Tensor:
    """Appends one key for every graph: a learned one, or, to a mask, one that all may attend to."""
    if bias is None:
        return F.pad(rows, (0, 1), value=True)
    graphs, heads, _, columns = rows.shape
    return torch.cat([rows, bias.view(1, heads, 1, columns).expand(graphs, -1, -1, -1)], 2)


def _varlen(context: BatchContext, qkv: Tensor) -> Tensor:
    """``[N, 3, heads, D]`` -> ``[N, heads, D]`` with one sequence per graph.

    Padding nodes belong to no sequence, and the kernel writes nothing there, forward or backward:
    the uninitialised memory may hold NaN, so both directions use ``where``, not a product.
    """
    real = context.present.node_mask[:, None, None]
    q, k, v = torch.where(real[:, None], qkv, 0).unbind(1)
    out = varlen_attention(q, k, v, context.starts(), context.present.capacity.max_graph_nodes)
    return torch.where(real, out, 0)
