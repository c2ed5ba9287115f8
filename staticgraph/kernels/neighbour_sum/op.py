"""``neighbour_sum`` as a torch operator: registration, shapes, derivative.

Its operands are often read again: the edge table by the next layer's sum, the nodes by a residual
connection. Autograd would add their gradients in one operation each. So the operator can hand its
operands on, and uses the gradients that arrive through them as the initial values of its own sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbour_sum import cpu
from staticgraph.kernels.neighbour_sum.reference import MULTIPLY, TRANSFORMS, WEIGHED
from staticgraph.kernels.register import differentiable_once, operator
from staticgraph.kernels.shapes import common_dtype, contiguous, empty_like
from staticgraph.kernels.table_sum.op import table_gradient


class Summed(NamedTuple):
    """A sum over neighbours, and its operands for their next reader.

    Attributes:
        out: ``[N, F]``.
        x: the nodes that were passed in.
        edge: the edge operand that was passed in, or ``each`` if that was, or None.
    """

    out: Tensor
    x: Tensor
    edge: Tensor | None


_OPERANDS = "Tensor x, Tensor? edge, Tensor? code, Tensor[] edges, Tensor? self_eps, Tensor? weight"


def _fake_backward(grad, x, edge, code, edges, *rest):
    dx = torch.empty_like(x)
    return dx, each_like(edge, edges[0]) if rest[-1] else empty_like(edge, x)


_forward = operator(
    f"neighbour_sum({_OPERANDS}, int transform, bool mean) -> Tensor",
    cpu=cpu.forward,
    cuda="neighbour_sum.gpu:forward",
    fake=lambda x, edge, *_: torch.empty_like(x, dtype=common_dtype(x, edge)),
)
_backward = operator(
    f"neighbour_sum_backward(Tensor grad, {_OPERANDS}, Tensor? into_x, Tensor? into_edge, "
    "int transform, bool mean, bool each) -> (Tensor dx, Tensor dedge)",
    cpu=cpu.backward,
    cuda="neighbour_sum.gpu:backward",
    fake=_fake_backward,
)


class NeighbourSum(torch.autograd.Function):
    """Autograd function of ``neighbour_sum``; ``handed`` tells which operands are handed on: "",
    "x", "xe".

    The gradient of edges goes to ``each`` if it is given, otherwise to the edge operand.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        """Returns the operator's ``[N, F]``, and ``x`` and the edge rows if they are handed on."""
        x, edge, code, edges, self_eps, weight, each, *ctx.options, ctx.handed = inputs
        ctx.save_for_backward(x, edge, code, self_eps, weight, *edges)
        ctx.each = each is not None
        out = _forward(x, edge, code, edges, self_eps, weight, *ctx.options)
        if not ctx.handed:
            return out
        if ctx.handed == "x":
            return out, x.view_as(x)
        return (
            out,
            x.view_as(x),
            (edge if each is None else each).view_as(edge if each is None else each),
        )

    @staticmethod
    @differentiable_once("neighbour_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of ``x`` and of the edge rows, each including that of the operand
        handed on."""
        x, edge, code, self_eps, weight, *edges = ctx.saved_tensors
        (transform, mean), needs = ctx.options, ctx.needs_input_grad
        if transform == MULTIPLY and edge.dim() == 1 and not (needs[1] or ctx.each):
            transform = WEIGHED  # the unneeded weight gradient is most of the arithmetic
        into = (*grads[1:], None, None)[:2]
        given = x, edge, code, edges, self_eps, weight
        dx, dedge = _backward(grads[0].contiguous(), *given, *into, transform, mean, ctx.each)
        to_edge, to_each = (None, dedge) if ctx.each else (dedge if needs[1] else None, None)
        to_eps = _of_eps(grads[0], x, self_eps) if needs[4] else None
        return dx, to_edge, None, None, to_eps, None, to_each, None, None, None


class EachEdge(torch.autograd.Function):
    """Autograd function that stands for the table rows that edges read, one per edge, to collect
    their gradients."""

    @staticmethod
    def forward(ctx: Any, edge: Tensor, code: Tensor) -> Tensor:
        """Returns ``[E, F]`` without memory: a node in autograd's graph for the table rows that
        edges share."""
        ctx.save_for_backward(code)
        ctx.entries, ctx.dtype = edge.size(0), edge.dtype
        wide = torch.promote_types(edge.dtype, torch.float32)
        return edge.new_empty(1, dtype=wide).expand(code.size(0), edge.size(1))

    @staticmethod
    @differentiable_once("neighbour_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the table's gradient ``[V, F]``, the edges' gradients summed by their codes."""
        (code,) = ctx.saved_tensors
        return table_gradient(grads[0], code.view(-1, 1), None, ctx.entries).to(ctx.dtype), None


def each_edge(edge: Tensor, code: Tensor) -> Tensor:
    """Returns a placeholder that collects the edge gradients of several sums over one table.

    If several sums read one table by the same ``code``, each would reduce its edges' gradients by
    table entry. With the placeholder passed from sum to sum as ``each`` of
    :func:`neighbour_sum_handed_on`, they accumulate edge by edge, and are reduced by entry once.

    Args:
        edge: ``[V, F]``.
        code: ``[E]`` int64.

    Returns:
        ``[E, F]`` float32 (float64 for float64) that has no values, only a gradient.
    """
    return EachEdge.apply(edge, code)


def neighbour_sum(
    x: Tensor,
    edge: Tensor | None,
    edges: Edges,
    *,
    code: Tensor | None = None,
    self_eps: Tensor | None = None,
    weight: Tensor | None = None,
    transform: str = "copy",
    mean: bool = False,
) -> Tensor:
    """Computes ``out[i] = (1 + self_eps) x[i] + sum over edges e into i of transform(x[src[e]],
    edge[e])``.

    With ``weight``, each message is multiplied by its weight.

    Args:
        x: ``[N, F]`` float32, float64, bfloat16 or float16; half precisions are accumulated in
            float32.
        edge: ``[E, F]``, or ``[E]`` with ``transform="multiply"``; None with ``"copy"``.
        edges: their ends and pointers.
        code: ``[E]`` int64; edge ``e`` then reads row ``code[e]`` of ``edge [V, F]``.
        self_eps: 0-dim or ``[1]``, GIN's epsilon; None leaves ``x[i]`` out.
        weight: ``[E]``, the factor of each message (OGB's GCN); only with ``relu_add``, and without
            a gradient.
        transform: ``copy`` (GIN, SAGE), ``multiply`` (GCN) or ``relu_add`` (GINE).
        mean: divide the sum by the number of edges into ``i``, at least 1.

    Returns:
        ``[N, F]`` in the promoted dtype of ``x`` and ``edge``, differentiable once in both and in
        ``self_eps``. Bitwise deterministic.

    Raises:
        ValueError: an unknown transform, an edge operand that the transform does not take, a
            missing one, weights with another transform, or weights that require a gradient.
    """
    x, edge, weight = _checked(x, edge, weight, transform)
    options = TRANSFORMS.index(transform), mean
    return NeighbourSum.apply(x, edge, code, edges, self_eps, weight, None, *options, "")


def neighbour_sum_handed_on(
    x: Tensor,
    edge: Tensor | None,
    edges: Edges,
    *,
    edge_too: bool = False,
    code: Tensor | None = None,
    each: Tensor | None = None,
    self_eps: Tensor | None = None,
    weight: Tensor | None = None,
    transform: str = "copy",
    mean: bool = False,
) -> Summed:
    """Returns :func:`neighbour_sum`, and its operands for their next reader.

    Later code should read the returned operands instead of those passed in.

    Args:
        edge_too: hand on the edge operand as well. Set it only if something reads that operand: an
            unused one brings back a gradient of zeros, which costs an operation.
        each: from :func:`each_edge`, or from the previous sum; it is then handed on in place of the
            edge operand, and the table itself gets no gradient from this sum.
    """
    x, edge, weight = _checked(x, edge, weight, transform)
    handed = "xe" if edge_too and edge is not None else "x"
    given = x, edge, code, edges, self_eps, weight, each
    out, x, *rest = NeighbourSum.apply(*given, TRANSFORMS.index(transform), mean, handed)
    return Summed(out, x, rest[0] if rest else edge if each is None else each)


def _checked(
    x: Tensor, edge: Tensor | None, weight: Tensor | None, transform: str
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    if transform not in TRANSFORMS:
        raise ValueError(f"transform={transform!r}; choose one of {', '.join(TRANSFORMS)}")
    if (edge is None) != (transform == "copy"):
        raise ValueError(
            f"transform={transform!r} {'takes no' if transform == 'copy' else 'needs an'} edge "
            "operand: 'copy' reads the node alone, 'multiply' and 'relu_add' node and edge"
        )
    if weight is not None and (transform != "relu_add" or weight.requires_grad):
        raise ValueError(
            f"weight: transform={transform!r} and requires_grad={weight.requires_grad}; weights of "
            "messages are for 'relu_add' and have no gradient: with 'multiply' give them as edge"
        )
    x, edge, weight = contiguous(x, edge, weight)
    return x, edge, weight


def each_like(edge: Tensor, src: Tensor) -> Tensor:
    """Allocates one gradient row per edge, in the accumulation dtype."""
    wide = torch.promote_types(edge.dtype, torch.float32)
    return edge.new_empty(src.size(0), *edge.shape[1:], dtype=wide)


def _of_eps(grad: Tensor, x: Tensor, self_eps: Tensor) -> Tensor:
    """Computes the gradient of the factor of the nodes' own rows, in one pass over both
    operands."""
    wide = torch.promote_types(grad.dtype, torch.promote_types(x.dtype, torch.float32))
    found = torch.dot(grad.to(wide).reshape(-1), x.to(wide).reshape(-1))
    return found.to(self_eps.dtype).view(self_eps.shape)
