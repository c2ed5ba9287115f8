"""``graph_attention`` as a torch operator: CPU loop, Triton kernel, shapes, derivative.

Dense attention copies the graphs of a batch to blocks, each with its own gathers, mask and kernels:
about five hundred launches per step for ten layers with six blocks by size. Here nodes stay where
the projection wrote them, with query, key and value side by side in one row, and one launch per
direction handles all graphs and heads, dropout included. Nothing as large as the weights is stored:
backward recomputes them from one log-sum-exp per row and head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.graph_attention import cpu
from staticgraph.kernels.register import differentiable_once, operator
from staticgraph.kernels.shapes import wide_dtype
from staticgraph.text.how_many import how_many


def graph_attention_reference(
    rows: Tensor, starts: Tensor, heads: int, mask: Tensor | None = None, p: float = 0.0
) -> Tensor:
    """Computes ``graph_attention``; differentiable, on any device.

    It needs memory for ``heads * N * N`` entries.

    Args:
        rows: ``[N, 3 * H * D]``: queries, keys and values, head by head.
        starts: ``[G + 1]``, ascending from 0.
        heads: ``H``.
        mask: ``[H, N, N]`` bool, the weights that dropout keeps, from
            :func:`staticgraph.kernels.graph_attention.draw_mask`; None keeps all.
        p: fraction of the weights that is dropped.
    """
    nodes = len(rows)
    place = torch.arange(nodes, device=rows.device)
    owner = torch.searchsorted(starts.to(place.dtype), place, right=True)
    real = place < starts[-1]
    together = (owner[:, None] == owner) & real
    q, k, v = rows.view(nodes, 3, heads, -1).permute(1, 2, 0, 3)
    scores = q @ k.transpose(1, 2) * q.size(-1) ** -0.5
    weights = scores.masked_fill(~together, -torch.inf).masked_fill(~real[:, None], 0).softmax(-1)
    if mask is not None:
        weights = weights * mask / (1 - p)
    out = torch.where(real[:, None], weights @ v, 0)
    return out.transpose(0, 1).reshape(nodes, -1)


def _fake(rows, starts, seed, heads, *_):
    out = rows.new_empty(rows.size(0), rows.size(1) // 3)
    return out, rows.new_empty(heads, rows.size(0), dtype=wide_dtype(rows))


_forward = operator(
    "graph_attention(Tensor rows, Tensor starts, Tensor? seed, SymInt heads, SymInt longest, "
    "int site, float p) -> (Tensor out, Tensor lse)",
    cpu=cpu.forward,
    cuda="graph_attention.gpu:forward",
    fake=_fake,
).overload
_backward = operator(
    "graph_attention_backward(Tensor grad, Tensor rows, Tensor out, Tensor lse, Tensor starts, "
    "Tensor? seed, SymInt heads, SymInt longest, int site, float p) -> (Tensor drows)",
    cpu=cpu.backward,
    cuda="graph_attention.gpu:backward",
    fake=lambda grad, rows, *_: torch.empty_like(rows),
).overload


class GraphAttention(torch.autograd.Function):
    """Autograd function of ``graph_attention``; backward works from the log-sum-exps."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the operator's ``[N, H * C]``."""
        rows, starts, seed, *ctx.options = inputs
        out, lse = _forward(rows, starts, seed, *ctx.options)
        ctx.save_for_backward(rows, out, lse, starts, seed)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradient of the rows, ``[N, 3 * H * C]``, by torch's own operations if it is
        to be differentiated again."""
        rows, *_, starts, _ = ctx.saved_tensors
        heads, longest, _, p = ctx.options
        if p or not torch.is_grad_enabled():
            return _first_derivative(ctx, *grads)
        with torch.enable_grad():
            out = in_one_block(rows, starts, heads, longest)
        return *torch.autograd.grad(out, rows, grads[0], create_graph=True), *(None,) * 6


@differentiable_once("graph_attention")
def _first_derivative(ctx: Any, *grads: Any) -> Any:
    return _backward(grads[0].contiguous(), *ctx.saved_tensors, *ctx.options), *(None,) * 6


def in_one_block(rows: Tensor, starts: Tensor, heads: int, longest: int) -> Tensor:
    """Computes ``graph_attention`` by torch's own operations, in one block as wide as the longest
    graph; differentiable any number of times."""
    places = torch.arange(longest, device=rows.device)
    occupied = places < starts.diff()[:, None]
    index = torch.where(occupied, starts[:-1, None] + places, len(rows))
    padded = torch.cat([rows, rows.new_zeros(1, rows.size(1))])
    block = padded[index].unflatten(-1, (3, heads, -1))
    q, k, v = block.permute(2, 0, 3, 1, 4).unbind()
    keys = occupied | (~occupied[:, :1] & (places == 0))  # no softmax is over an empty set
    scores = q @ k.mT * q.size(-1) ** -0.5
    weights = scores.masked_fill(~keys[:, None, None], -torch.inf).softmax(-1)
    out = (weights @ v).transpose(1, 2).flatten(2)
    nodes = torch.where(occupied, index, len(rows)).view(-1, 1).expand(-1, out.size(2))
    return out.new_zeros(len(rows) + 1, out.size(2)).scatter(0, nodes, out.flatten(0, 1))[:-1]


def graph_attention(
    rows: Tensor,
    starts: Tensor,
    *,
    heads: int,
    longest: int,
    p: float = 0.0,
    seed: Tensor | None = None,
    site: int = 0,
) -> Tensor:
    """Computes softmax attention of every node over the nodes of its graph, scaled by
    ``D ** -0.5``.

    Args:
        rows: ``[N, 3 * H * D]``, queries, keys and values from one projection; float32 or a half
            precision on CUDA, any floating dtype on a CPU. Sums are float32 (float64 for float64).
        starts: ``[G + 1]`` int32, ascending from 0; graph ``g`` has rows ``starts[g]`` to
            ``starts[g + 1]``, possibly none. Rows from ``starts[G]`` on belong to no graph.
        heads: ``H``.
        longest: upper bound on the rows of a graph, a constant of the bucket.
        p: fraction of the weights to drop, in ``[0, 1)``.
        seed: ``[1]`` int64, from :func:`staticgraph.kernels.dropout_sum.draw_seed`; required if
            ``p`` is not 0.
        site: a number that differs between the places of a model that share the seed.

    Returns:
        ``[N, H * D]``, zero in rows of no graph whatever they contain; their gradient is zero, too.
        Differentiable any number of times without dropout, from the second on by torch's own
        operations; once with dropout. Bitwise deterministic, and independent of the other graphs in
        the batch except for dropout, which depends on the row.

    Raises:
        ValueError: columns that are not three parts of ``heads`` heads, ``p`` outside ``[0, 1)``,
            or a nonzero ``p`` without a seed.
    """
    if rows.size(1) % (3 * heads):
        raise ValueError(
            f"{how_many(rows.size(1), 'column')} cannot be queries, keys and values of "
            f"{how_many(heads, 'head')} of equal width: give a multiple of {3 * heads}"
        )
    if not 0 <= p < 1:
        raise ValueError(f"p={p}: the share that is dropped must be from 0 up to, but not, 1")
    if p and seed is None:
        raise ValueError(f"p={p} without a seed: draw one with draw_seed, once a forward")
    return GraphAttention.apply(
        rows.contiguous(), starts, seed if p else None, heads, longest, site, p
    )


def draw_mask(
    starts: Tensor, seed: Tensor, heads: int, longest: int, site: int, p: float
) -> Tensor:
    """Returns the mask ``[H, N, N]`` bool of the weights that :func:`graph_attention` keeps on the
    seed's device.

    ``N`` is ``starts[G]``. The weights are made visible by values with one column per key.
    """
    nodes = int(starts[-1])
    rows = torch.zeros(nodes, 3, heads, nodes, device=seed.device)
    rows[:, 2] = torch.eye(nodes, device=seed.device)[:, None]
    out, _ = _forward(rows.flatten(1), starts, seed, heads, longest, site, p)
    return out.view(nodes, heads, nodes).transpose(0, 1) > 0
