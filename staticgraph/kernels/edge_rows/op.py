"""``edge_rows`` as a torch operator: reference, registration, shapes, derivative.

A message that no other operator covers begins with the rows of both ends, ``x[dst]`` and
``x[src]``, and its backward ends with two scatters of all edges by index, which torch adds row by
row. The edges of a batch are sorted, so each is a single pass here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.edge_rows import cpu
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.message import message_reference, some_of
from staticgraph.kernels.register import differentiable_once, operator
from staticgraph.kernels.shapes import contiguous


def edge_rows_reference(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
) -> Tensor:
    """Computes ``edge_rows``; differentiable, on any device.

    Sums are float32 (float64 for float64). Arguments as in :func:`staticgraph.kernels.edge_rows`;
    edges in any order.
    """
    rows = message_reference(source, target, edge, code, src, dst)
    return rows.to(some_of(source, target, edge).dtype)


def _fake(source, target, edge, code, edges):
    some = some_of(source, target, edge)
    return some.new_empty(edges[0].size(0), some.size(1))


def _fake_backward(grad, code, edges, entries, source, target, edge):
    nodes = edges[2].size(0) - 1
    rows = nodes * source, nodes * target, entries if edge and code is not None else 0
    return tuple(grad.new_empty(count, grad.size(1)) for count in rows)


_sums_of_ends = operator(
    "edge_rows_backward(Tensor grad, Tensor? code, Tensor[] edges, SymInt entries, bool source, "
    "bool target, bool edge) -> (Tensor dsource, Tensor dtarget, Tensor dedge)",
    cpu=cpu.backward,
    cuda="edge_rows.gpu:backward",
    fake=_fake_backward,
)
_rows_of_ends = operator(
    "edge_rows(Tensor? source, Tensor? target, Tensor? edge, Tensor? code, Tensor[] edges) "
    "-> Tensor",
    cpu=cpu.forward,
    cuda="edge_rows.gpu:forward",
    fake=_fake,
)


class EdgeRows(torch.autograd.Function):
    """Autograd function of ``edge_rows``; backward sums by row pointer."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the operator's ``[E, F]``."""
        _, _, edge, code, edges = inputs
        ctx.save_for_backward(code, *edges)
        ctx.entries = 0 if edge is None else edge.size(0)
        return _rows_of_ends(*inputs)

    @staticmethod
    @differentiable_once("edge_rows")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of source, target and edge that are needed."""
        code, *edges = ctx.saved_tensors
        grad, needs = grads[0].contiguous(), ctx.needs_input_grad[:3]
        found = [None, None, grad if code is None else None]
        if needs[0] or needs[1] or (needs[2] and code is not None):
            sums = _sums_of_ends(grad, code, edges, ctx.entries, *needs)
            found = [*sums[:2], sums[2] if code is not None else grad]
        return *(one if need else None for one, need in zip(found, needs, strict=True)), None, None


def edge_rows(
    source: Tensor | None,
    target: Tensor | None,
    edge: Tensor | None,
    edges: Edges,
    *,
    code: Tensor | None = None,
) -> Tensor:
    """Computes ``out[e] = source[src[e]] + target[dst[e]] + edge[e]``, of the operands that are
    given.

    Args:
        source, target: ``[N, F]``, or None for nothing.
        edge: ``[E, F]``, or None for nothing. At least one of the three is required.
        edges: their ends and pointers.
        code: ``[E]`` int64; edge ``e`` then reads row ``code[e]`` of ``edge [V, F]``.

    Returns:
        ``[E, F]`` in the dtype of the operands; half precisions are accumulated in float32.
        Differentiable once. Bitwise deterministic.

    Raises:
        ValueError: no operand is given.
    """
    if source is None and target is None and edge is None:
        raise ValueError("rows of nothing: give source, target or edge")
    return EdgeRows.apply(*contiguous(source, target, edge), code, edges)


class SourceSum(torch.autograd.Function):
    """Autograd function of :func:`source_sum`; backward is a gather."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the ``[N, F]`` of :func:`source_sum`."""
        rows, edges = inputs
        ctx.save_for_backward(*edges)
        return _sums_of_ends(rows, None, edges, 0, True, False, False)[0]

    @staticmethod
    @differentiable_once("source_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradient of ``rows``, ``[E, F]``."""
        edges = list(ctx.saved_tensors)
        return _rows_of_ends(grads[0].contiguous(), None, None, None, edges), None


def source_sum(rows: Tensor, edges: Edges) -> Tensor:
    """Computes ``out[j] = sum of rows[e] over the edges e with src[e] = j``.

    It is ``scatter(message, edge_index[0])``, the message flow of a layer with
    ``flow="target_to_source"``. Edges are sorted by destination, so this is not a segment
    reduction, but it is what brings a gradient back to the sources, in a fixed order of additions.

    Args:
        rows: ``[E, F]``.
        edges: their ends and pointers.

    Returns:
        ``[N, F]`` in the dtype of ``rows``; half precisions are accumulated in float32.
        Differentiable once. Bitwise deterministic.
    """
    return SourceSum.apply(rows.contiguous(), edges)
