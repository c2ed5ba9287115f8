"""``dot_attention`` as a torch operator: reference, registration, shapes.

Stock ``TransformerConv`` gathers a query, a key and a value per edge, adds the edge term,
multiplies, sums, takes a softmax of four scatters and gathers, multiplies again and scatters: ten
arrays of ``[E, H * C]`` per direction. Here scores, softmax and weighted sum are one operator over
the batch's own edges, and only one number per edge and head is kept for backward.

Source: Shi et al. 2021, arXiv 2009.03509.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.dot_attention import cpu
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import common_dtype, contiguous, wide_dtype
from staticgraph.text.how_many import how_many


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

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.dot_attention`; edges in any order.
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


def _fake(query, key, value, edge, code, edges, heads, *rest):
    share = query.new_empty(edges[0].size(0), heads, dtype=wide_dtype(query))
    return torch.empty_like(value, dtype=rest[-1]), share


def _fake_backward(grad, out, share, query, key, value, edge, *_):
    dedge = query.new_empty(0, 0) if edge is None else torch.empty_like(edge)
    return *map(torch.empty_like, (query, key, value)), dedge


_OPERANDS = (
    "Tensor query, Tensor key, Tensor value, Tensor? edge, Tensor? code, Tensor[] edges, "
    "SymInt heads, float scale, bool to_key, bool to_value"
)
_attention = operator(
    f"dot_attention({_OPERANDS}, ScalarType dtype) -> (Tensor out, Tensor share)",
    cpu=cpu.forward,
    cuda="dot_attention.gpu:forward",
    fake=_fake,
    backward=operator(
        f"dot_attention_backward(Tensor grad, Tensor out, Tensor share, {_OPERANDS}) "
        "-> (Tensor dquery, Tensor dkey, Tensor dvalue, Tensor dedge)",
        cpu=cpu.backward,
        cuda="dot_attention.gpu:backward",
        fake=_fake_backward,
    ),
)


def dot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Edges,
    *,
    heads: int,
    scale: float = 1.0,
    edge: Tensor | None = None,
    code: Tensor | None = None,
    to_key: bool = True,
    to_value: bool = True,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes ``out[i] = sum over e into i of softmax(score)[e] (value[src[e]] + edge[e])`` per
    head.

    The score of an edge from ``j`` to ``i`` is ``scale * query[i] . (key[j] + edge[e])``; the
    softmax is over the edges into ``i``.

    Args:
        query, key: ``[N, H * C]``; half precisions are accumulated in float32.
        value: ``[N, H * D]``.
        edges: their ends and pointers.
        heads: ``H``.
        scale: factor of every score, such as ``C ** -0.5``.
        edge: ``[E, H * C]``, what an edge adds to keys and values; None for nothing.
        code: ``[E]`` int64; edge ``e`` then reads row ``code[e]`` of ``edge [V, H * C]``.
        to_key, to_value: whether ``edge`` is added to keys, and to values.
        dtype: dtype of the result; None for the promoted dtype of the operands.

    Returns:
        ``[N, H * D]``; zero for a node without edges. Differentiable once in ``query``, ``key``,
        ``value`` and ``edge``. Bitwise deterministic.

    Raises:
        ValueError: heads that do not divide the columns, operands of different widths, or an
            ``edge`` that is added to neither keys nor values.
    """
    for rows in (query, value):
        if rows.size(1) % heads:
            raise ValueError(
                f"{how_many(rows.size(1), 'column')} cannot be cut into "
                f"{how_many(heads, 'head')} of equal width"
            )
    if query.size(1) != key.size(1):
        columns = how_many(query.size(1), "column")
        raise ValueError(f"queries of {columns} and keys of {key.size(1)}")
    if edge is not None:
        to = [rows for rows, used in ((key, to_key), (value, to_value)) if used]
        if not to:
            raise ValueError("edge is added nowhere: pass to_key=True or to_value=True")
        for rows in to:
            if rows.size(1) != edge.size(1):
                raise ValueError(
                    f"edge has {how_many(edge.size(1), 'column')}, what it is added to has "
                    f"{rows.size(1)}"
                )
    common = common_dtype(query, key, value, edge)
    given = contiguous(
        *(None if rows is None else rows.to(common) for rows in (query, key, value, edge))
    )
    to = edge is not None and to_key, edge is not None and to_value
    return _attention(*given, code, edges, heads, scale, *to, dtype or common)[0]
