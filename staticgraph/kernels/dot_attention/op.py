"""``dot_attention`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative.

Stock ``TransformerConv`` gathers a query, a key and a value per edge, adds the edge term,
multiplies, sums, takes a softmax of four scatters and gathers, multiplies again and scatters: ten
arrays of ``[E, H * C]`` per direction. Here scores, softmax and weighted sum are one operator over
the batch's own edges, and only one number per edge and head is kept for backward.

Source: Shi et al. 2021, arXiv 2009.03509.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.dot_attention import cpu
from staticgraph.kernels.message import codes_of
from staticgraph.kernels.register import operator
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


_OPERANDS = (
    "Tensor query, Tensor key, Tensor value, Tensor? edge, Tensor? code, Tensor src, Tensor dst, "
    "Tensor row_ptr, Tensor col_ptr, Tensor transpose, SymInt heads, float scale, bool to_key, "
    "bool to_value"
)


def _on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    heads: int,
    scale: float,
    to_key: bool,
    to_value: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(query.dtype, torch.float32)
    out, share = torch.empty(value.shape, dtype=wide), _share(query, src, heads)
    cpu.forward(
        *_read(query, key, value, edge, to_key, to_value),
        codes_of(code),
        src.numpy(),
        row_ptr.numpy(),
        heads,
        scale,
        out.numpy(),
        share.numpy(),
    )
    return out.to(dtype), share


def _backward_on_cpu(
    grad: Tensor,
    out: Tensor,
    share: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    heads: int,
    scale: float,
    to_key: bool,
    to_value: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide, dtype = share.dtype, query.dtype
    shapes = key.shape, value.shape, (0, 0) if edge is None else edge.shape
    found = [torch.empty(query.shape, dtype=wide)]
    found += [torch.zeros(shape, dtype=wide) for shape in shapes]
    cpu.backward(
        grad.to(wide).numpy(),
        out.to(wide).numpy(),
        share.numpy(),
        *_read(query, key, value, edge, to_key, to_value),
        codes_of(code),
        src.numpy(),
        row_ptr.numpy(),
        scale,
        to_key,
        to_value,
        *(one.numpy() for one in found),
    )
    dquery, dkey, dvalue, dedge = (one.to(dtype) for one in found)
    return dquery, dkey, dvalue, dedge


def _read(
    query: Tensor, key: Tensor, value: Tensor, edge: Tensor | None, to_key: bool, to_value: bool
) -> tuple[Any, Any, Any, Any, Any]:
    """Returns queries, keys, values and the edge terms of keys and of values as NumPy arrays.

    All are in the accumulation dtype. A missing edge term is a row of zeros that every edge reads.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    more = None if edge is None or not len(edge) else _array(edge, wide)

    def of_edges(used: bool, like: Tensor) -> Any:
        """Returns the edge term of rows like these: ``[E, H * C]``, or ``[1, H * C]`` zeros for all
        edges."""
        if used and more is not None:
            return more
        return torch.zeros(1, like.size(1), dtype=wide).numpy()

    return (
        _array(query, wide),
        _array(key, wide),
        _array(value, wide),
        of_edges(to_key, key),
        of_edges(to_value, value),
    )


def _array(rows: Tensor, wide: torch.dtype) -> Any:
    return rows.detach().to(wide).numpy()


def _on_cuda(query, key, value, edge, code, src, dst, row_ptr, col_ptr, transpose, *options):
    from staticgraph.kernels.dot_attention import gpu

    return gpu.forward(query, key, value, edge, code, src, row_ptr, *options)


def _backward_on_cuda(*given):
    from staticgraph.kernels.dot_attention import gpu

    return gpu.backward(*given)


def _fake(query, key, value, edge, code, src, dst, row_ptr, col_ptr, transpose, heads, *rest):
    return torch.empty_like(value, dtype=rest[-1]), _share(query, src, heads)


def _fake_backward(grad, out, share, query, key, value, edge, *_):
    dedge = query.new_empty(0, 0) if edge is None else torch.empty_like(edge)
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), dedge


def _setup(ctx, inputs, output):
    *tensors, heads, scale, to_key, to_value, _ = inputs
    ctx.options = heads, scale, to_key, to_value
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for the attention weights, which have no gradient
    ctx.save_for_backward(*output, *tensors)


def _derivative(ctx, grad, *_):
    if grad is None:
        return (None,) * 15
    dquery, dkey, dvalue, dedge = _backward(grad.contiguous(), *ctx.saved_tensors, *ctx.options)
    return dquery, dkey, dvalue, dedge if ctx.needs_input_grad[3] else None, *(None,) * 11


_backward = operator(
    f"dot_attention_backward(Tensor grad, Tensor out, Tensor share, {_OPERANDS}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=_fake_backward,
)
_forward = operator(
    f"dot_attention({_OPERANDS}, ScalarType dtype) -> (Tensor, Tensor)",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=_fake,
    derivative=_derivative,
    setup=_setup,
)


def dot_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
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
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.
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
    common = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    if edge is not None:
        common = torch.promote_types(common, edge.dtype)
    return _forward(
        *(one.to(common).contiguous() for one in (query, key, value)),
        None if edge is None else edge.to(common).contiguous(),
        code,
        src,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        heads,
        scale,
        edge is not None and to_key,
        edge is not None and to_value,
        common if dtype is None else dtype,
    )[0]


def _share(query: Tensor, src: Tensor, heads: int) -> Tensor:
    """Allocates the attention weights of the edges."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    return torch.empty(src.size(0), heads, dtype=dtype, device=query.device)
