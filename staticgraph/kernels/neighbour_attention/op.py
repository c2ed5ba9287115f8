"""``neighbour_attention`` as a torch operator: reference, registration, shapes.

Stock ``GATConv`` removes self-loops, appends one per node, gathers two scores per edge, adds them,
applies the leaky ReLU, computes a softmax of four scatters and gathers, gathers the rows,
multiplies and scatters. Here that is one operator over the batch's own edges: with ``loops``, edges
from a node to itself are skipped and each node attends to itself once.

Source: Velickovic et al. 2018, arXiv 1710.10903.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbour_attention import cpu
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import common_dtype, contiguous, empty_like, wide_dtype
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


def _fake(x, pair, edge, own, edges, heads, slope, loops, dtype):
    wide = wide_dtype(x)
    share = x.new_empty(edges[0].size(0), heads, dtype=wide)
    own_share = x.new_empty(x.size(0) if loops else 0, heads, dtype=wide)
    return torch.empty_like(x, dtype=dtype), share, own_share


_OPERANDS = (
    "Tensor? pair, Tensor? edge, Tensor? own, Tensor[] edges, SymInt heads, float slope, bool loops"
)
_attention = operator(
    f"neighbour_attention(Tensor x, {_OPERANDS}, ScalarType dtype) "
    "-> (Tensor out, Tensor share, Tensor own_share)",
    cpu=cpu.forward,
    cuda="neighbour_attention.gpu:forward",
    fake=_fake,
    backward=operator(
        "neighbour_attention_backward(Tensor grad, Tensor x, Tensor out, Tensor share, "
        f"Tensor own_share, {_OPERANDS}) "
        "-> (Tensor dx, Tensor dpair, Tensor dedge, Tensor down)",
        cpu=cpu.backward,
        cuda="neighbour_attention.gpu:backward",
        fake=lambda grad, x, out, share, own_share, pair, *_: (
            torch.empty_like(x),
            empty_like(pair, x),
            *map(torch.empty_like, (share, own_share)),
        ),
    ),
)


def neighbour_attention(
    x: Tensor,
    edges: Edges,
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
        edges: their ends and pointers.
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
    given = contiguous(x, pair, edge, own)
    return _attention(*given, edges, heads, slope, loops, common_dtype(*given))[0]
