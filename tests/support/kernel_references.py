"""The definitions of the operators in eager torch, by which they are tested.

Each is differentiable any number of times, on any device, and takes edges in any order. Sums are
float32, float64 for float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.kernels.message import message_reference, some_of


def gcn_degrees_reference(
    src: Tensor, dst: Tensor, nodes: int, weight: Tensor | None, fill: float, loops: bool
) -> tuple[Tensor, Tensor]:
    """Computes ``gcn_degrees`` in eager torch.

    Arguments as in :func:`staticgraph.kernels.gcn_sum.gcn_degrees`; edges may be in any order.
    """
    weights = torch.ones(len(src), dtype=torch.float64) if weight is None else weight.double()
    own = weights.new_zeros(nodes)
    if loops:
        same = src == dst
        own = (own + fill).index_put((dst[same],), weights[same])
        weights = torch.where(same, 0, weights)
    degree = own.index_add(0, dst, weights)
    none = degree == 0
    return degree.masked_fill(none, 1).pow(-0.5).masked_fill(none, 0), own


def gcn_sum_reference(
    x: Tensor,
    bias: Tensor | None,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    src: Tensor,
    dst: Tensor,
    loops: bool,
) -> Tensor:
    """Computes ``gcn_sum``; differentiable.

    Arguments as in :func:`staticgraph.kernels.gcn_sum.gcn_sum`.
    """
    values = x.to(torch.promote_types(x.dtype, torch.float32))
    root, own = root.to(values), own.to(values)
    share = root[src] * root[dst]
    share = share if weight is None else share * weight.to(values)
    if loops:
        share = torch.where(src == dst, 0, share)
    out = (own * root * root)[:, None] * values
    out = out.index_add(0, dst, share[:, None] * values[src])
    return (out if bias is None else out + bias.to(values)).to(x.dtype)


def neighbour_sum_reference(
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    self_eps: Tensor | None,
    transform: str,
    mean: bool,
    weight: Tensor | None = None,
) -> Tensor:
    """Computes ``neighbour_sum``; differentiable, on any device.

    Arguments as in :func:`staticgraph.kernels.neighbour_sum`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    values = x.to(wide)
    rows = values.index_select(0, src)
    if edge is not None:
        other = edge.to(wide)
        other = other if code is None else other.index_select(0, code)
        other = other.unsqueeze(-1) if other.dim() == 1 else other
        rows = (rows + other).relu() if transform == "relu_add" else rows * other
    if weight is not None:
        rows = rows * weight.to(wide).unsqueeze(-1)
    out = torch.zeros_like(values).index_add(0, dst, rows)
    if mean:
        degree = torch.zeros(len(x), dtype=wide, device=x.device)
        degree = degree.index_add(0, dst, torch.ones_like(dst, dtype=wide))
        out = out / degree.clamp(min=1).unsqueeze(-1)
    if self_eps is not None:
        out = out + (1 + self_eps.to(wide)) * values
    return out.to(x.dtype)


def neighbour_max_reference(x: Tensor, edge: Tensor | None, src: Tensor, dst: Tensor) -> Tensor:
    """Computes ``neighbour_max`` with torch's ``scatter_reduce``, differentiable, on any device.

    The way ties share a gradient is that of ``scatter_reduce``. Arguments as in
    :func:`staticgraph.kernels.neighbour_max`; edges in any order.
    """
    rows = x.index_select(0, src)
    rows = rows if edge is None else (rows + edge).relu()
    into = dst[:, None].expand_as(rows)
    return rows.new_zeros(x.shape).scatter_reduce(0, into, rows, "amax", include_self=False)


# Up to this variance PyG's standard deviation is zero, and has no gradient.
LEAST_VARIANCE = 1e-5


def activated(rows: Tensor, activation: str, slope: float) -> Tensor:
    """Applies one of :data:`ACTIVATIONS` to ``rows``."""
    if activation == "leaky_relu":
        return F.leaky_relu(rows, slope)
    functions = {"relu": torch.relu, "silu": F.silu, "sigmoid": torch.sigmoid}
    return rows if activation == "none" else functions[activation](rows)


def _reduced(rows: Tensor, dst: Tensor, nodes: int, reduction: str) -> Tensor:
    zeros = rows.new_zeros(nodes, rows.size(1))
    if reduction == "sum":
        return zeros.index_add(0, dst, rows)
    if reduction in ("min", "max"):
        index = dst[:, None].expand_as(rows)
        return zeros.scatter_reduce(0, index, rows, f"a{reduction}", include_self=False)
    count = rows.new_zeros(nodes).index_add(0, dst, torch.ones_like(rows[:, 0])).clamp(min=1)
    mean = zeros.index_add(0, dst, rows) / count[:, None]
    if reduction == "mean":
        return mean
    away = (rows - mean.index_select(0, dst)).square()
    variance = zeros.index_add(0, dst, away) / count[:, None]
    if reduction == "var":
        return variance
    out = variance.clamp(min=LEAST_VARIANCE).sqrt()
    return out.masked_fill(out <= math.sqrt(LEAST_VARIANCE), 0.0)


def neighbour_reduce_reference(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    nodes: int,
    activation: str,
    slope: float,
    reductions: Sequence[str],
    towers: int,
) -> Tensor:
    """Computes ``neighbour_reduce``; differentiable, on any device.

    Arguments as in :func:`staticgraph.kernels.neighbour_reduce`.
    """
    rows = activated(message_reference(source, target, edge, code, src, dst), activation, slope)
    found = [_reduced(rows, dst, nodes, reduction) for reduction in reductions]
    width = rows.size(1) // towers
    together = torch.stack([one.view(nodes, towers, width) for one in found])
    dtype = some_of(source, target, edge).dtype
    return together.permute(2, 1, 0, 3).reshape(towers, nodes, -1).to(dtype)


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

    Arguments as in :func:`staticgraph.kernels.neighbour_attention`.
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


def pair_score_reference(
    left: Tensor,
    right: Tensor,
    weight: Tensor,
    edge: Tensor | None,
    own: Tensor | None,
    src: Tensor,
    dst: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """Computes ``pair_score``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.pair_score`;
    edges in any order.
    """
    wide = torch.promote_types(left.dtype, torch.float32)
    heads, width = weight.shape

    def score(rows: Tensor) -> Tensor:
        """Reduces ``[n, H * C]`` to ``[n, H]``, in the dtype of the operands."""
        active = F.leaky_relu(rows, slope).view(-1, heads, width)
        return (active * weight.to(wide)).sum(-1).to(left.dtype)

    left, right = left.to(wide), right.to(wide)
    rows, loops = left[src] + right[dst], left + right
    rows = rows if edge is None else rows + edge.to(wide)
    return score(rows), score(loops if own is None else loops + own.to(wide))


def dot_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    heads: int,
    scale: float,
    to_key: bool,
    to_value: bool,
) -> Tensor:
    """Computes ``dot_attention``; differentiable, on any device.

    Arguments as in :func:`staticgraph.kernels.dot_attention`.
    """
    wide, nodes = torch.promote_types(query.dtype, torch.float32), len(query)

    def parted(rows: Tensor) -> Tensor:
        """Reshapes ``[n, H * C]`` to ``[n, H, C]`` in the accumulation dtype."""
        return rows.to(wide).view(len(rows), heads, rows.size(1) // heads)

    keys, values = parted(key)[src], parted(value)[src]
    if edge is not None:
        rows = parted(edge if code is None else edge.index_select(0, code))
        keys = keys + rows if to_key else keys
        values = values + rows if to_value else values
    score = (parted(query)[dst] * keys).sum(-1) * scale
    largest = score.detach().new_full((nodes, heads), -torch.inf)
    largest = largest.scatter_reduce(0, dst[:, None].expand_as(score), score.detach(), "amax")
    power = (score - largest[dst]).exp()
    share = power / power.new_zeros(nodes, heads).index_add(0, dst, power)[dst]
    out = torch.zeros_like(parted(value)).index_add(0, dst, share[:, :, None] * values)
    return out.reshape(value.shape).to(query.dtype)


def vector_sum_reference(
    vectors: Tensor,
    edge: Tensor,
    unit: Tensor | None,
    x: Tensor | None,
    src: Tensor,
    dst: Tensor,
    places: tuple[int, int, int],
) -> tuple[Tensor, Tensor | None]:
    """Computes ``vector_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.vector_sum`;
    ``places`` are the offsets of gate, along and scalar, -1 for none; edges in any order.
    """
    wide, width = torch.promote_types(vectors.dtype, torch.float32), vectors.size(2)
    rows = edge.to(wide) if x is None else edge.to(wide) * x.to(wide).index_select(0, src)
    gate, along, scalar = (rows[:, at : at + width] if at >= 0 else None for at in places)
    assert gate is not None
    message = vectors.to(wide).index_select(0, src) * gate[:, None]
    if along is not None and unit is not None:
        message = message + along[:, None] * unit.to(wide)[:, :, None]
    out = torch.zeros_like(vectors, dtype=wide).index_add(0, dst, message).to(vectors.dtype)
    if scalar is None:
        return out, None
    zero = out.new_zeros(len(vectors), width, dtype=wide)
    return out, zero.index_add(0, dst, scalar).to(vectors.dtype)


def edge_matrix_sum_reference(
    x: Tensor, matrices: Tensor, src: Tensor, dst: Tensor, mean: bool
) -> Tensor:
    """Computes ``edge_matrix_sum``; differentiable, on any device.

    Arguments as in :func:`staticgraph.kernels.edge_matrix_sum`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    rows = torch.einsum("ek,eko->eo", x.to(wide).index_select(0, src), matrices.to(wide))
    out = rows.new_zeros(len(x), rows.size(1)).index_add(0, dst, rows)
    if mean:
        degree = rows.new_zeros(len(x)).index_add(0, dst, torch.ones_like(dst, dtype=wide))
        out = out / degree.clamp(min=1).unsqueeze(-1)
    return out.to(x.dtype)


def segment_sum_reference(values: Tensor, ptr: Tensor, mean: bool) -> Tensor:
    """Computes ``segment_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.segment_sum`.
    """
    wide = torch.promote_types(values.dtype, torch.float32)
    rows = torch.arange(len(values), device=values.device)
    segment = torch.searchsorted(ptr, rows, right=True) - 1
    out = values.new_zeros(len(ptr) - 1, values.size(1), dtype=wide)
    out = out.index_add(0, segment, values.to(wide))
    if mean:
        out = out / ptr.diff().clamp(min=1).to(wide).unsqueeze(-1)
    return out.to(values.dtype)


def segment_max_reference(values: Tensor, ptr: Tensor) -> Tensor:
    """Computes ``segment_max`` with torch's ``scatter_reduce``, differentiable, on any device.

    The way ties share a gradient is that of ``scatter_reduce``. Arguments as in
    :func:`staticgraph.kernels.segment_max`.
    """
    rows = torch.arange(len(values), device=values.device)
    segment = (torch.searchsorted(ptr, rows, right=True) - 1)[:, None].expand_as(values)
    out = values.new_zeros(len(ptr) - 1, values.size(1))
    return out.scatter_reduce(0, segment, values, "amax", include_self=False)


def segment_softmax_reference(values: Tensor, ptr: Tensor) -> Tensor:
    """Computes ``segment_softmax``; differentiable, on any device.

    Arguments as in :func:`staticgraph.kernels.segment_softmax`.
    """
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    parts = [wide[a:b].softmax(0) for a, b in pairwise(ptr.tolist())]
    return torch.cat(parts).to(values.dtype)


def table_sum_reference(index: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    """Computes ``table_sum``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.table_sum`.
    """
    wide = torch.promote_types(weight.dtype, torch.float32)
    rows = weight.to(wide).index_select(0, (index + offsets[:-1]).view(-1))
    return rows.view(*index.shape, weight.size(1)).sum(1).to(weight.dtype)


def dropout_sum_reference(
    x: Tensor, residual: Tensor | None, kept: Tensor, p: float, relu: bool
) -> Tensor:
    """Computes ``dropout_sum``; differentiable, on any device.

    Args:
        kept: ``[R, F]`` bool, from :func:`staticgraph.kernels.dropout_sum.kept`.
    """
    value = (x.relu() if relu else x) * kept.to(x.dtype) / (1 - p)
    return value if residual is None else residual + value


def batch_norm_reference(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    count: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes ``batch_norm``; differentiable, on any device.

    Statistics are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.batch_norm`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    real = (torch.arange(len(x), device=x.device) < count).unsqueeze(-1)
    values = torch.where(real, x.to(wide), 0)
    rows = count.clamp(min=1).to(wide)
    mean = values.sum(0) / rows
    var = torch.where(real, values - mean, 0).square().sum(0) / rows
    centred = torch.where(real, x.to(wide) - mean, 0)
    out = centred * (var + eps).rsqrt() * weight.to(wide) + bias.to(wide)
    out = torch.where(real, out.relu() if relu else out, 0)
    out = out if residual is None else out + residual.to(wide)
    return out.to(x.dtype), mean, var


def graph_attention_reference(
    rows: Tensor, starts: Tensor, heads: int, kept: Tensor | None = None, p: float = 0.0
) -> Tensor:
    """Computes ``graph_attention``; differentiable, on any device.

    It needs memory for ``heads * N * N`` entries.

    Args:
        rows: ``[N, 3 * H * D]``: queries, keys and values, head by head.
        starts: ``[G + 1]``, ascending from 0.
        heads: ``H``.
        kept: ``[H, N, N]`` bool, the weights that dropout keeps, from
            :func:`staticgraph.kernels.graph_attention.kept`; None keeps all.
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
    if kept is not None:
        weights = weights * kept / (1 - p)
    out = torch.where(real[:, None], weights @ v, 0)
    return out.transpose(0, 1).reshape(nodes, -1)
