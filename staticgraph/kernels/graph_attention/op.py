"""``graph_attention`` as an operator of torch: CPU loop, Triton kernel, shapes, derivative.

Dense attention lays the graphs of a batch out in blocks, each with its own gathers, mask and
kernels: about five hundred launches a step for ten layers with six blocks by size. Here nodes stay
where the projection left them, queries, keys and values beside each other in one row, and one
launch forward and one backward do all graphs and heads, dropout included. Nothing of the size of
the weights is stored: backward computes them again from a log-sum-exp a row and head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.graph_attention import cpu
from staticgraph.kernels.register import differentiable_once, operator
from staticgraph.text.how_many import how_many


def _on_cpu(rows, starts, seed, heads, longest, site, p):
    return cpu.forward(rows, starts, seed, heads, site, p)


def _backward_on_cpu(grad, rows, out, lse, starts, seed, heads, longest, site, p):
    return cpu.backward(grad, rows, out, lse, starts, seed, heads, site, p)


def _on_cuda(*arguments):
    from staticgraph.kernels.graph_attention import gpu

    return gpu.forward(*arguments)


def _backward_on_cuda(*arguments):
    from staticgraph.kernels.graph_attention import gpu

    return gpu.backward(*arguments)


def _fake(rows, starts, seed, heads, *_):
    wide = torch.promote_types(rows.dtype, torch.float32)
    out = rows.new_empty(rows.size(0), rows.size(1) // 3)
    return out, rows.new_empty(heads, rows.size(0), dtype=wide)


_forward = operator(
    "graph_attention(Tensor rows, Tensor starts, Tensor? seed, SymInt heads, SymInt longest, "
    "int site, float p) -> (Tensor, Tensor)",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=_fake,
)
_backward = operator(
    "graph_attention_backward(Tensor grad, Tensor rows, Tensor out, Tensor lse, Tensor starts, "
    "Tensor? seed, SymInt heads, SymInt longest, int site, float p) -> Tensor",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=lambda grad, rows, *_: torch.empty_like(rows),
)


class GraphAttention(torch.autograd.Function):
    """The derivative, from the log-sum-exps."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """``[N, H * C]`` as the operator gives it."""
        rows, starts, seed, *ctx.options = inputs
        out, lse = _forward(rows, starts, seed, *ctx.options)
        ctx.save_for_backward(rows, out, lse, starts, seed)
        return out

    @staticmethod
    @differentiable_once("graph_attention")
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of the rows, ``[N, 3 * H * C]``."""
        return _backward(grads[0].contiguous(), *ctx.saved_tensors, *ctx.options), *(None,) * 6


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
    """Softmax attention of every node over the nodes of its graph, scaled by ``D ** -0.5``.

    Args:
        rows: ``[N, 3 * H * D]``, queries, keys and values as one projection gives them; float32 or
            a half precision on CUDA, any float on a CPU. Sums are float32 (float64 of float64).
        starts: ``[G + 1]`` int32, ascending from 0; graph ``g`` has rows ``starts[g]`` to
            ``starts[g + 1]``, and may have none. Rows from ``starts[G]`` on belong to no graph.
        heads: ``H``.
        longest: a bound on the rows of a graph, a constant of the bucket.
        p: the share of the weights that is dropped, from 0 up to but not 1.
        seed: ``[1]`` int64, as :func:`staticgraph.kernels.dropout_sum.draw_seed` draws it; needed
            where ``p`` is not 0.
        site: another number at every place of a model that shares the seed.

    Returns:
        ``[N, H * D]``, zero in rows of no graph, whatever stands there; so is their gradient.
        Differentiable once. The same bits every time, and whatever graphs stand beside, dropout
        aside, which goes by the row.

    Raises:
        ValueError: columns that are not three parts of ``heads`` heads, ``p`` outside ``[0, 1)``,
            or a ``p`` without a seed.
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


def kept(starts: Tensor, seed: Tensor, heads: int, longest: int, site: int, p: float) -> Tensor:
    """``[H, N, N]`` bool: the weights that :func:`graph_attention` keeps on the seed's device, of
    ``N = starts[G]`` rows: values of one column a key show the weights."""
    nodes = int(starts[-1])
    rows = torch.zeros(nodes, 3, heads, nodes, device=seed.device)
    rows[:, 2] = torch.eye(nodes, device=seed.device)[:, None]
    out, _ = _forward(rows.flatten(1), starts, seed, heads, longest, site, p)
    return out.view(nodes, heads, nodes).transpose(0, 1) > 0
