"""``gcn_sum`` as a torch operator: reference, registration, shapes, derivative.

The self-loops that a GCN layer adds are not edges of the batch, and need not become edges: the
message of a self-loop is the node's own row. So the sum runs over the batch's own edges, skips
those that are self-loops already (``loops=True``), and adds one term per node. The factors that do
not depend on the features, the inverse square root of each degree and each self-loop's weight, are
computed once per forward by ``gcn_degrees`` and shared by all layers. If edge weights are learned,
their gradient has two parts: the one from ``gcn_sum``, which also yields gradients of roots and
self-loops, and the one that ``gcn_degrees`` derives from those.

Source: Kipf and Welling 2017, arXiv 1609.02907, as ``torch_geometric.nn.conv.gcn_conv.gcn_norm``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.gcn_sum import cpu
from staticgraph.kernels.register import differentiable_once, operator
from staticgraph.kernels.shapes import contiguous, wide_dtype


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

    Sums are float32 (float64 for float64). Arguments as in
    :func:`staticgraph.kernels.gcn_sum.gcn_sum`; edges in any order.
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


_degrees = operator(
    "gcn_degrees(Tensor[] edges, Tensor? weight, float fill, bool loops, Tensor like) "
    "-> (Tensor root, Tensor own)",
    cpu=cpu.degrees,
    cuda="gcn_sum.gpu:degrees",
    fake=lambda edges, weight, fill, loops, like: tuple(
        edges[2].new_empty(edges[2].size(0) - 1, dtype=wide_dtype(like)) for _ in range(2)
    ),
    backward=operator(
        "gcn_degrees_backward(Tensor grad_root, Tensor grad_own, Tensor root, Tensor[] edges, "
        "bool loops) -> (Tensor dweight)",
        cpu=cpu.degrees_backward,
        cuda="gcn_sum.gpu:degrees_backward",
        fake=lambda droot, down, root, edges, loops: root.new_empty(edges[0].size(0)),
    ),
)
_weights_backward = operator(
    "gcn_weights_backward(Tensor grad, Tensor x, Tensor root, Tensor own, Tensor? weight, "
    "Tensor[] edges, bool loops) -> (Tensor droot, Tensor down, Tensor dweight)",
    cpu=cpu.sum_backward,
    cuda="gcn_sum.gpu:weights_backward",
    fake=lambda grad, x, root, own, weight, edges, loops: tuple(
        x.new_empty(n, dtype=wide_dtype(x)) for n in (x.size(0), x.size(0), edges[0].size(0))
    ),
)
_gcn_sum = operator(
    "gcn_sum(Tensor x, Tensor? bias, Tensor root, Tensor own, Tensor? weight, Tensor[] edges, "
    "bool loops, ScalarType dtype, bool transposed) -> Tensor",
    cpu=cpu.forward,
    cuda="gcn_sum.gpu:forward",
    fake=lambda x, *rest: torch.empty_like(x, dtype=rest[-2]),
)


class GcnSum(torch.autograd.Function):
    """Autograd function of ``gcn_sum``; gradients of all but rows and bias are an operator of their
    own."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns the operator's ``[N, F]``."""
        x, bias, root, own, weight, edges, ctx.loops, _ = inputs
        ctx.weighs = any(ctx.needs_input_grad[2:5])
        ctx.save_for_backward(x if ctx.weighs else None, root, own, weight, *edges)
        ctx.dtype, ctx.bias_dtype = x.dtype, None if bias is None else bias.dtype
        return _gcn_sum(*inputs, False)

    @staticmethod
    @differentiable_once("gcn_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of rows, bias, roots, self-loops and weights that are needed."""
        x, root, own, weight, *edges = ctx.saved_tensors
        grad, needs = grads[0].contiguous(), ctx.needs_input_grad
        given, dx = (root, own, weight, edges, ctx.loops), None
        if needs[0]:  # the same sum, over the edges out of each node
            dx = _gcn_sum(grad, None, *given, ctx.dtype, True)
        dbias = grad.sum(0, dtype=ctx.bias_dtype) if needs[1] else None
        rest = [None] * 3
        if ctx.weighs:
            found = _weights_backward(grad, x, *given)
            rest = [
                slope.to(of.dtype) if need else None
                for slope, of, need in zip(found, (root, own, weight), needs[2:5], strict=True)
            ]
        return dx, dbias, *rest, None, None, None


def gcn_degrees(
    edges: Edges, weight: Tensor | None, fill: float, loops: bool, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes inverse square roots of the degrees, and the weight of each node's self-loop.

    Args:
        edges: their ends and pointers.
        weight: ``[E]``, or None if every edge has weight one.
        fill: the weight of an added self-loop.
        loops: whether to add a self-loop to each node without one; an existing self-loop keeps its
            weight (the last one's, if there are several, and each has its gradient, as in PyG).
        like: a tensor of the features' dtype.

    Returns:
        ``[N]`` and ``[N]``, float32 (float64 if ``like`` is): ``degree ** -0.5``, zero where the
        degree is zero, and the self-loop's weight, zero without ``loops``. Both are differentiable
        once in ``weight``; where the degree is zero the gradient is zero, while PyG's is NaN.
    """
    return _degrees(edges, *contiguous(weight), fill, loops, like)


def gcn_sum(
    x: Tensor,
    root: Tensor,
    own: Tensor,
    edges: Edges,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    loops: bool = True,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes ``out[i] = bias + own[i] root[i]^2 x[i] + sum over e into i of w[e] root[i] root[j]
    x[j]``.

    Args:
        x: ``[N, F]``; half precisions are accumulated in float32.
        root, own: from :func:`gcn_degrees`.
        edges: their ends and pointers.
        weight: ``[E]``, or None if every edge has weight one.
        bias: ``[F]`` or None.
        loops: skip edges from a node to itself, which ``own`` replaces.
        dtype: dtype of the result; None for that of ``x``.

    Returns:
        ``[N, F]``, differentiable once in ``x``, ``bias``, ``root``, ``own`` and ``weight``.
        Bitwise deterministic.
    """
    x, weight = contiguous(x, weight)
    return GcnSum.apply(x, bias, root, own, weight, edges, loops, dtype or x.dtype)
