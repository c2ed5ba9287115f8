"""``neighbour_attention`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative.

Stock ``GATConv`` removes self-loops, appends one per node, gathers two scores per edge, adds them,
applies the leaky ReLU, computes a softmax of four scatters and gathers, gathers the rows,
multiplies and scatters. Here that is one operator over the batch's own edges: with ``loops``, edges
from a node to itself are skipped and each node attends to itself once.

Source: Velickovic et al. 2018, arXiv 1710.10903.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.neighbour_attention import cpu
from staticgraph.kernels.register import operator
from staticgraph.text.how_many import how_many


def neighbour_attention_reference(
    x: Tensor,
    pair: Tensor | None,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    heads: int,
    slope: float,
    loops: bool,
) -> Tensor:
    """Computes ``neighbour_attention``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.neighbour_attention`; edges in any order.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    nodes, score = len(x), x.new_zeros(len(src), heads, dtype=wide)
    everyone = torch.arange(nodes, device=x.device)
    if edge is not None:
        score = score + edge.to(wide)
    if loops:
        kept = src != dst
        mine = score.new_zeros(nodes, heads) if own is None else own.to(wide)
        score = torch.cat([score[kept], mine])
        src, dst = torch.cat([src[kept], everyone]), torch.cat([dst[kept], everyone])
    if pair is not None:
        score = score + (pair[:, src, 0] + pair[:, dst, 1]).t().to(wide)
    score = F.leaky_relu(score, slope)
    largest = score.detach().new_full((nodes, heads), -torch.inf)
    largest = largest.scatter_reduce(0, dst[:, None].expand_as(score), score.detach(), "amax")
    power = (score - largest[dst]).exp()
    share = power / power.new_zeros(nodes, heads).index_add(0, dst, power)[dst]
    rows = x.to(wide).view(nodes, heads, -1)
    out = torch.zeros_like(rows).index_add(0, dst, share[:, :, None] * rows[src])
    return out.reshape(x.shape).to(x.dtype)


def _on_cpu(
    x: Tensor,
    pair: Tensor | None,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    heads: int,
    slope: float,
    loops: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = x.detach().to(wide).view(len(x), heads, x.size(1) // heads)
    out = torch.empty_like(rows)
    share, own_share = _shares(x, src, heads, loops)
    cpu.forward(
        rows.numpy(),
        _array(pair, wide, 3),
        _array(edge, wide, 2),
        _array(own, wide, 2),
        src.numpy(),
        row_ptr.numpy(),
        slope,
        loops,
        out.numpy(),
        share.numpy(),
        own_share.numpy(),
    )
    return out.view(x.shape).to(dtype), share, own_share


def _backward_on_cpu(
    grad: Tensor,
    x: Tensor,
    out: Tensor,
    share: Tensor,
    own_share: Tensor,
    pair: Tensor | None,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    heads: int,
    slope: float,
    loops: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide, shape = share.dtype, (len(x), heads, x.size(1) // heads)
    dx = torch.zeros(x.shape, dtype=wide)
    dpair = torch.empty((0, 0, 2) if pair is None else pair.shape, dtype=wide)
    dedge, down = torch.empty_like(share), torch.empty_like(own_share)
    cpu.backward(
        grad.to(wide).view(shape).numpy(),
        x.to(wide).view(shape).numpy(),
        out.to(wide).view(shape).numpy(),
        share.numpy(),
        own_share.numpy(),
        _array(pair, wide, 3),
        _array(edge, wide, 2),
        _array(own, wide, 2),
        src.numpy(),
        row_ptr.numpy(),
        slope,
        loops,
        dx.view(shape).numpy(),
        dpair.numpy(),
        dedge.numpy(),
        down.numpy(),
    )
    dpair = x.new_empty(0) if pair is None else dpair.to(pair.dtype)
    return dx.to(x.dtype), dpair, dedge, down


def _on_cuda(x, pair, edge, own, src, dst, row_ptr, col_ptr, transpose, heads, slope, loops, dtype):
    from staticgraph.kernels.neighbour_attention import gpu

    return gpu.forward(x, pair, edge, own, src, row_ptr, heads, slope, loops, dtype)


def _backward_on_cuda(grad, x, out, share, own_share, pair, edge, own, src, *rest):
    from staticgraph.kernels.neighbour_attention import gpu

    return gpu.backward(grad, x, out, share, own_share, pair, edge, own, *rest)


def _fake(x, pair, edge, own, src, dst, row_ptr, col_ptr, transpose, heads, slope, loops, dtype):
    return torch.empty_like(x, dtype=dtype), *_shares(x, src, heads, loops)


def _fake_backward(grad, x, out, share, own_share, pair, *_):
    dpair = x.new_empty(0) if pair is None else torch.empty_like(pair)
    return torch.empty_like(x), dpair, torch.empty_like(share), torch.empty_like(own_share)


def _setup(ctx, inputs, output):
    *tensors, ctx.heads, ctx.slope, ctx.loops, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for the attention weights, which have no gradient
    ctx.save_for_backward(*output, *tensors)


def _derivative(ctx, grad, *_):
    if grad is None:
        return (None,) * 13
    out, share, own_share, x, pair, edge, own, *rest = ctx.saved_tensors
    dx, dpair, dedge, down = _backward(
        grad.contiguous(),
        x,
        out,
        share,
        own_share,
        pair,
        edge,
        own,
        *rest,
        ctx.heads,
        ctx.slope,
        ctx.loops,
    )
    return (
        dx,
        dpair if ctx.needs_input_grad[1] else None,
        dedge.to(edge.dtype) if ctx.needs_input_grad[2] else None,
        down.to(own.dtype) if ctx.needs_input_grad[3] else None,
        *(None,) * 9,
    )


_backward = operator(
    "neighbour_attention_backward(Tensor grad, Tensor x, Tensor out, Tensor share, "
    "Tensor own_share, Tensor? pair, Tensor? edge, Tensor? own, Tensor src, Tensor dst, "
    "Tensor row_ptr, Tensor col_ptr, Tensor transpose, SymInt heads, float slope, bool loops) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=_fake_backward,
)
_forward = operator(
    "neighbour_attention(Tensor x, Tensor? pair, Tensor? edge, Tensor? own, Tensor src, "
    "Tensor dst, Tensor row_ptr, Tensor col_ptr, Tensor transpose, SymInt heads, float slope, "
    "bool loops, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=_fake,
    derivative=_derivative,
    setup=_setup,
)


def neighbour_attention(
    x: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    *,
    heads: int,
    pair: Tensor | None = None,
    edge: Tensor | None = None,
    own: Tensor | None = None,
    slope: float = 1.0,
    loops: bool = True,
) -> Tensor:
    """Computes ``out[i] = sum over e into i of softmax(leaky_relu(score))[e] x[src[e]]`` per head.

    The score of an edge from ``j`` to ``i`` is ``pair[h, j, 0] + pair[h, i, 1] + edge[e, h]``; the
    softmax is over the edges into ``i``.

    Args:
        x: ``[N, H * C]``; half precisions are accumulated in float32.
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.
        heads: ``H``.
        pair: ``[H, N, 2]``, a node's score terms as a source and as a destination; None for
            nothing.
        edge: ``[E, H]``, an edge's score term; None for nothing.
        own: ``[N, H]``, the score term of a node's self-loop, in place of ``edge``; None for
            nothing.
        slope: of the leaky ReLU below zero; 1 leaves scores unchanged.
        loops: every node attends to itself once, and edges from a node to itself are skipped.

    Returns:
        ``[N, H * C]`` in the promoted dtype of ``x`` and the scores; zero for a node without edges
        or self-loop. Differentiable once in ``x``, ``pair``, ``edge`` and ``own``. Bitwise
        deterministic.

    Raises:
        ValueError: ``own`` without ``loops``, or heads that do not divide the columns.
    """
    if x.size(1) % heads:
        raise ValueError(
            f"{how_many(x.size(1), 'column')} cannot be cut into {how_many(heads, 'head')} of "
            "equal width"
        )
    if own is not None and not loops:
        raise ValueError("own scores are those of the loops: pass loops=True, or leave them out")
    dtype = x.dtype
    for score in (pair, edge, own):
        dtype = dtype if score is None else torch.promote_types(dtype, score.dtype)
    return _forward(
        x.contiguous(),
        *(None if score is None else score.contiguous() for score in (pair, edge, own)),
        src,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        heads,
        slope,
        loops,
        dtype,
    )[0]


def _shares(x: Tensor, src: Tensor, heads: int, loops: bool) -> tuple[Tensor, Tensor]:
    """Allocates the attention weights of edges and of self-loops."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return (
        torch.empty(src.size(0), heads, dtype=dtype, device=x.device),
        torch.empty(x.size(0) if loops else 0, heads, dtype=dtype, device=x.device),
    )


def _array(value: Tensor | None, dtype: torch.dtype, dims: int) -> Any:
    """Returns the tensor as a NumPy array in the accumulation dtype; an empty one for None."""
    if value is None:
        return torch.empty((0,) * dims, dtype=dtype).numpy()
    return value.detach().to(dtype).numpy()
