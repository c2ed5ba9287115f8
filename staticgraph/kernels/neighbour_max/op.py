"""``neighbour_max`` as a torch operator: reference, registration, shapes."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbour_max import cpu
from staticgraph.kernels.register import operator
from staticgraph.kernels.shapes import empty_like


def neighbour_max_reference(x: Tensor, edge: Tensor | None, src: Tensor, dst: Tensor) -> Tensor:
    """Computes ``neighbour_max`` with torch's ``scatter_reduce``, differentiable, on any device.

    The way ties share a gradient is that of ``scatter_reduce``. Arguments as in
    :func:`staticgraph.kernels.neighbour_max`; edges in any order.
    """
    rows = x.index_select(0, src)
    rows = rows if edge is None else (rows + edge).relu()
    into = dst[:, None].expand_as(rows)
    return rows.new_zeros(x.shape).scatter_reduce(0, into, rows, "amax", include_self=False)


_neighbour_max = operator(
    "neighbour_max(Tensor x, Tensor? edge, Tensor[] edges) -> Tensor",
    cpu=cpu.forward,
    cuda="neighbour_max.gpu:forward",
    fake=lambda x, *_: torch.empty_like(x),
    backward=operator(
        "neighbour_max_backward(Tensor grad, Tensor x, Tensor? edge, Tensor out, Tensor[] edges) "
        "-> (Tensor dx, Tensor dedge)",
        cpu=cpu.backward,
        cuda="neighbour_max.gpu:backward",
        fake=lambda grad, x, edge, *_: (torch.empty_like(x), empty_like(edge, x)),
    ),
)


def neighbour_max(x: Tensor, edge: Tensor | None, edges: Edges) -> Tensor:
    """Computes ``out[i] = largest over edges e into i of x[src[e]]``, or of
    ``ReLU(x[src[e]] + edge[e])``.

    Ties share the gradient as in :func:`staticgraph.kernels.segment_max`.

    Args:
        x: ``[N, F]``.
        edge: ``[E, F]``, or None if the messages are the rows themselves.
        edges: their ends and pointers.

    Returns:
        ``[N, F]``, zero for a node without incoming edges; differentiable once in ``x`` and
        ``edge``. Bitwise deterministic.
    """
    if edge is not None:
        dtype = torch.promote_types(x.dtype, edge.dtype)
        x, edge = x.to(dtype), edge.to(dtype).contiguous()
    return _neighbour_max(x.contiguous(), edge, edges)
