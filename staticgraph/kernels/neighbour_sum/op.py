"""``neighbour_sum`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative.

Its operands are often read again: the edge table by the next layer's sum, the nodes by a residual
connection. Autograd would add their gradients in one operation each. So the operator can hand its
operands on, and uses the gradients that arrive through them as the initial values of its own sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.kernels.addresses import LIKE, addresses, cast, in_kernels, plain
from staticgraph.kernels.neighbour_sum import cpu
from staticgraph.kernels.neighbour_sum.reference import TRANSFORMS
from staticgraph.kernels.register import differentiable_once, operator
from staticgraph.kernels.table_sum.op import table_gradient
from staticgraph.kernels.threads import threads_for


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


def _on_cpu(
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    self_eps: Tensor | None,
    weight: Tensor | None,
    transform: str,
    mean: bool,
) -> Tensor:
    dtype = common(x, edge)
    wide = in_kernels(dtype)
    x, rows, code = plain(x, wide), _rows(edge, wide), plain(code, torch.int64)
    weight, src = plain(weight, wide), plain(src, torch.int64)
    row_ptr = plain(row_ptr, torch.int32)
    out = torch.empty_like(x)
    cpu.FORWARD[transform](
        LIKE[wide],
        addresses(x, rows, code, weight, src, row_ptr, out),
        (*x.shape, *_shape(rows), _length(code), _length(weight), len(src)),
        0.0 if self_eps is None else 1.0 + float(self_eps),
        mean,
        threads_for((len(x) + len(src)) * x.size(1)),
    )
    return cast(out, dtype)


def _backward_on_cpu(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    self_eps: Tensor | None,
    weight: Tensor | None,
    into_x: Tensor | None,
    into_edge: Tensor | None,
    transform: str,
    mean: bool,
    each: bool,
) -> tuple[Tensor, Tensor]:
    dtype, types = common(x, edge), (x.dtype, x.dtype if edge is None else edge.dtype)
    if each:  # the kernel handles edges that each have a row
        assert edge is not None
        assert code is not None
        edge, code = edge.index_select(0, code), None
        types = types[0], torch.promote_types(dtype, torch.float32)
    wide = in_kernels(dtype)
    grad, x, rows = plain(grad, wide), plain(x, wide), _rows(edge, wide)
    code, weight = plain(code, torch.int64), plain(weight, wide)
    on_x, on_edge = plain(into_x, wide), _rows(into_edge, wide)
    dst, row_ptr = plain(dst, torch.int64), plain(row_ptr, torch.int32)
    col_ptr, transpose = plain(col_ptr, torch.int32), plain(transpose, torch.int32)
    dx = torch.empty_like(x)
    dedge = x.new_empty(0 if edge is None else edge.shape)
    if code is not None and not len(code):
        dedge.zero_()  # a table that no edge reads
    read = grad, x, rows, code, dst, row_ptr, col_ptr, transpose
    cpu.BACKWARD[transform](
        LIKE[wide],
        addresses(*read, on_x, on_edge, dx, dedge, weight),
        (*x.shape, *_shape(rows), *map(_length, (code, dst, on_x, on_edge, weight))),
        0.0 if self_eps is None else 1.0 + float(self_eps),
        mean,
        threads_for((len(x) + len(src)) * x.size(1)),
    )
    return cast(dx, types[0]), cast(dedge, types[1])


def _on_cuda(x, edge, code, src, dst, row_ptr, col_ptr, transpose, *rest):
    from staticgraph.kernels.neighbour_sum import gpu

    return gpu.forward(x, edge, code, src, row_ptr, *rest)


def _backward_on_cuda(grad, x, edge, code, src, *rest):
    from staticgraph.kernels.neighbour_sum import gpu

    given: list[Any] = list(rest)
    if given[-3] == "weighed":  # the GPU has no separate kernel for it
        given[-3] = "multiply"
    return gpu.backward(grad, x, edge, code, *given)


_OPERANDS = (
    "Tensor x, Tensor? edge, Tensor? code, Tensor src, Tensor dst, Tensor row_ptr, "
    "Tensor col_ptr, Tensor transpose, Tensor? self_eps, Tensor? weight"
)
_forward = operator(
    f"neighbour_sum({_OPERANDS}, str transform, bool mean) -> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=lambda x, edge, *_: torch.empty_like(x, dtype=common(x, edge)),
)


def _fake_backward(grad, x, edge, code, src, *rest):
    dx = torch.empty_like(x)
    return dx, each_like(edge, src) if rest[-1] else _gradient_like(edge, x)


_backward = operator(
    f"neighbour_sum_backward(Tensor grad, {_OPERANDS}, Tensor? into_x, Tensor? into_edge, "
    "str transform, bool mean, bool each) -> (Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
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
        *tensors, each, transform, mean, handed = inputs
        ctx.save_for_backward(*tensors)
        ctx.transform, ctx.mean, ctx.handed, ctx.each = transform, mean, handed, each is not None
        out = _forward(*tensors, transform, mean)
        if not handed:
            return out
        x, edge = tensors[0], tensors[1] if each is None else each
        if handed == "x":
            return out, x.view_as(x)
        return out, x.view_as(x), edge.view_as(edge)

    @staticmethod
    @differentiable_once("neighbour_sum")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of ``x`` and of the edge rows, each including that of the operand
        handed on."""
        into_x = grads[1] if ctx.handed else None
        into_edge = grads[2] if ctx.handed == "xe" else None
        transform, weight = ctx.transform, ctx.saved_tensors[1]
        wanted = ctx.needs_input_grad[1] or ctx.each
        if transform == "multiply" and weight.dim() == 1 and not wanted:
            transform = "weighed"  # the unneeded weight gradient is most of the arithmetic
        dx, dedge = _backward(
            grads[0], *ctx.saved_tensors, into_x, into_edge, transform, ctx.mean, ctx.each
        )
        of_edge = dedge if ctx.needs_input_grad[1] else None
        of_eps = _of_eps(grads[0], *ctx.saved_tensors[::8]) if ctx.needs_input_grad[8] else None
        if ctx.each:
            return dx, *(None,) * 7, of_eps, None, dedge, *(None,) * 3
        return dx, of_edge, *(None,) * 6, of_eps, *(None,) * 5


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
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
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
        src, dst: ``[E]`` int64, both ends of the edges, sorted by ``dst``.
        row_ptr, col_ptr, transpose: ``[N + 1]``, ``[N + 1]``, ``[E]`` int32, as described in
            :class:`staticgraph.batches.slots.slots.SlotLayout`.
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
    pointers = (src, dst, row_ptr, col_ptr, transpose)
    return NeighbourSum.apply(x, edge, code, *pointers, self_eps, weight, None, transform, mean, "")


def neighbour_sum_handed_on(
    x: Tensor,
    edge: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
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
    pointers = (src, dst, row_ptr, col_ptr, transpose)
    given = x, edge, code, *pointers, self_eps, weight, each
    results = NeighbourSum.apply(*given, transform, mean, handed)
    kept = edge if each is None else each
    return Summed(results[0], results[1], results[2] if handed == "xe" else kept)


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
    edge, weight = (None if one is None else one.contiguous() for one in (edge, weight))
    return x.contiguous(), edge, weight


def common(x: Tensor, edge: Tensor | None) -> torch.dtype:
    """Returns the dtype of a sum."""
    return x.dtype if edge is None else torch.promote_types(x.dtype, edge.dtype)


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


def _rows(value: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Returns an edge operand as ``[V, F]`` or ``[V, 1]``."""
    value = plain(value, dtype)
    return value.unsqueeze(1) if value is not None and value.dim() == 1 else value


def _shape(rows: Tensor | None) -> tuple[int, int]:
    return (0, 0) if rows is None else (rows.size(0), rows.size(1))


def _length(value: Tensor | None) -> int:
    return 0 if value is None else len(value)


def _gradient_like(edge: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(0) if edge is None else torch.empty_like(edge)
