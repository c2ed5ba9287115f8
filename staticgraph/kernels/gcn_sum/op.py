"""``gcn_sum`` as a torch operator: CPU kernel, Triton kernel, shapes, derivative.

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

import torch
from torch import Tensor

from staticgraph.kernels.addresses import LIKE, addresses, cast, in_kernels, plain
from staticgraph.kernels.gcn_sum import cpu, cpu_weights
from staticgraph.kernels.register import operator
from staticgraph.kernels.threads import threads_for


def _degrees_on_cpu(
    src: Tensor, row_ptr: Tensor, weight: Tensor | None, fill: float, loops: bool, like: Tensor
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(like.dtype, torch.float32)
    root = torch.empty(len(row_ptr) - 1, dtype=dtype)
    own = torch.empty_like(root)
    cpu.degrees(
        src.numpy(),
        row_ptr.numpy(),
        _numbers(weight, dtype).numpy(),
        fill,
        loops,
        root.numpy(),
        own.numpy(),
    )
    return root, own


def _on_cpu(
    x: Tensor,
    bias: Tensor | None,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    loops: bool,
    dtype: torch.dtype,
) -> Tensor:
    wide = in_kernels(x.dtype)
    read = [plain(value, wide) for value in (x, bias, root, own, weight)]
    src, row_ptr = plain(src, torch.int64), plain(row_ptr, torch.int32)
    out = torch.empty_like(read[0])
    cpu.forward(
        LIKE[wide],
        addresses(*read, src, row_ptr, out),
        x.size(0),
        x.size(1),
        len(src),
        bias is not None,
        weight is not None,
        loops,
        threads_for((len(x) + len(src)) * x.size(1)),
    )
    return cast(out, dtype)


def _backward_on_cpu(
    grad: Tensor,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    dst: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    loops: bool,
    dtype: torch.dtype,
) -> Tensor:
    wide = in_kernels(grad.dtype)
    read = [plain(value, wide) for value in (grad, root, own, weight)]
    dst, col_ptr = plain(dst, torch.int64), plain(col_ptr, torch.int32)
    transpose = plain(transpose, torch.int32)
    dx = torch.empty_like(read[0])
    cpu.backward(
        LIKE[wide],
        addresses(*read, dst, col_ptr, transpose, dx),
        grad.size(0),
        grad.size(1),
        len(dst),
        weight is not None,
        loops,
        threads_for((len(grad) + len(dst)) * grad.size(1)),
    )
    return cast(dx, dtype)


def _weights_backward_on_cpu(
    grad: Tensor,
    x: Tensor,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    loops: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = in_kernels(x.dtype)
    read = [plain(value, wide) for value in (grad, x, root, own, weight)]
    src, row_ptr = plain(src, torch.int64), plain(row_ptr, torch.int32)
    droot, down, dweight = (torch.empty(n, dtype=wide) for n in (len(x), len(x), len(src)))
    cpu_weights.sum_backward(
        LIKE[wide],
        addresses(*read, src, row_ptr, droot, down, dweight),
        x.size(0),
        x.size(1),
        len(src),
        weight is not None,
        loops,
        threads_for((len(x) + len(src)) * x.size(1)),
    )
    return droot, down, dweight


def _degrees_backward_on_cpu(
    droot: Tensor, down: Tensor, root: Tensor, src: Tensor, row_ptr: Tensor, loops: bool
) -> Tensor:
    dweight = root.new_empty(len(src))
    given = droot.numpy(), down.numpy(), root.numpy(), src.numpy(), row_ptr.numpy()
    cpu_weights.degrees_backward(*given, loops, dweight.numpy())
    return dweight


def _degrees_on_cuda(src, row_ptr, weight, fill, loops, like):
    from staticgraph.kernels.gcn_sum import gpu

    return gpu.degrees(src, row_ptr, weight, fill, loops, like)


def _on_cuda(x, bias, root, own, weight, src, dst, row_ptr, col_ptr, transpose, loops, dtype):
    from staticgraph.kernels.gcn_sum import gpu

    return gpu.forward(x, bias, root, own, weight, src, row_ptr, loops, dtype)


def _backward_on_cuda(grad, root, own, weight, dst, col_ptr, transpose, loops, dtype):
    from staticgraph.kernels.gcn_sum import gpu

    return gpu.backward(grad, root, own, weight, dst, col_ptr, transpose, loops, dtype)


def _weights_backward_on_cuda(*operands):
    from staticgraph.kernels.gcn_sum import gpu

    return gpu.weights_backward(*operands)


def _degrees_backward_on_cuda(*operands):
    from staticgraph.kernels.gcn_sum import gpu

    return gpu.degrees_backward(*operands)


def _fake_degrees(src, row_ptr, weight, fill, loops, like):
    dtype = torch.promote_types(like.dtype, torch.float32)
    root = torch.empty(row_ptr.size(0) - 1, dtype=dtype, device=src.device)
    return root, torch.empty_like(root)


def _like_first(rows, *rest):
    return torch.empty_like(rows, dtype=rest[-1])


def _setup(ctx, inputs, output):
    x, bias, root, own, weight, src, dst, row_ptr, col_ptr, transpose, ctx.loops, _ = inputs
    ctx.weighs = any(ctx.needs_input_grad[2:5])
    kept = x if ctx.weighs else None
    ctx.save_for_backward(kept, root, own, weight, src, dst, row_ptr, col_ptr, transpose)
    ctx.dtype, ctx.bias_dtype = x.dtype, None if bias is None else bias.dtype


def _derivative(ctx, grad):
    x, root, own, weight, src, dst, row_ptr, col_ptr, transpose = ctx.saved_tensors
    grad = grad.contiguous()
    dx = None
    if ctx.needs_input_grad[0]:
        dx = _backward(grad, root, own, weight, dst, col_ptr, transpose, ctx.loops, ctx.dtype)
    dbias = grad.sum(0, dtype=ctx.bias_dtype) if ctx.needs_input_grad[1] else None
    given = (None,) * 3
    if ctx.weighs:
        where = src, dst, row_ptr, col_ptr, transpose
        droot, down, dweight = _weights_backward(grad, x, root, own, weight, *where, ctx.loops)
        wants = ctx.needs_input_grad[2:5]
        found = zip((droot, down, dweight), (root, own, weight), wants, strict=True)
        given = tuple(one.to(of.dtype) if want else None for one, of, want in found)
    return dx, dbias, *given, *(None,) * 7


def _fake_weights_backward(grad, x, root, own, weight, src, *rest):
    dtype = torch.promote_types(x.dtype, torch.float32)
    return tuple(x.new_empty(n, dtype=dtype) for n in (x.size(0), x.size(0), src.size(0)))


def _setup_degrees(ctx, inputs, output):
    src, row_ptr, weight, _, ctx.loops, _ = inputs
    ctx.save_for_backward(output[0], src, row_ptr)
    ctx.dtype = None if weight is None else weight.dtype


def _derivative_of_degrees(ctx, droot, down):
    root, src, row_ptr = ctx.saved_tensors
    if not ctx.needs_input_grad[2]:
        return (None,) * 6
    zero = torch.zeros_like(root)
    droot, down = (zero if one is None else one.contiguous() for one in (droot, down))
    dweight = _degrees_backward(droot, down, root, src, row_ptr, ctx.loops)
    return None, None, dweight.to(ctx.dtype), None, None, None


_degrees = operator(
    "gcn_degrees(Tensor src, Tensor row_ptr, Tensor? weight, float fill, bool loops, Tensor like) "
    "-> (Tensor, Tensor)",
    cpu=_degrees_on_cpu,
    cuda=_degrees_on_cuda,
    fake=_fake_degrees,
    derivative=_derivative_of_degrees,
    setup=_setup_degrees,
)
_degrees_backward = operator(
    "gcn_degrees_backward(Tensor droot, Tensor down, Tensor root, Tensor src, Tensor row_ptr, "
    "bool loops) -> Tensor",
    cpu=_degrees_backward_on_cpu,
    cuda=_degrees_backward_on_cuda,
    fake=lambda droot, down, root, src, *_: root.new_empty(src.size(0)),
)
_weights_backward = operator(
    "gcn_weights_backward(Tensor grad, Tensor x, Tensor root, Tensor own, Tensor? weight, "
    "Tensor src, Tensor dst, Tensor row_ptr, Tensor col_ptr, Tensor transpose, bool loops) "
    "-> (Tensor, Tensor, Tensor)",
    cpu=_weights_backward_on_cpu,
    cuda=_weights_backward_on_cuda,
    fake=_fake_weights_backward,
)
_backward = operator(
    "gcn_sum_backward(Tensor grad, Tensor root, Tensor own, Tensor? weight, Tensor dst, "
    "Tensor col_ptr, Tensor transpose, bool loops, ScalarType dtype) -> Tensor",
    cpu=_backward_on_cpu,
    cuda=_backward_on_cuda,
    fake=_like_first,
)
_forward = operator(
    "gcn_sum(Tensor x, Tensor? bias, Tensor root, Tensor own, Tensor? weight, Tensor src, "
    "Tensor dst, Tensor row_ptr, Tensor col_ptr, Tensor transpose, bool loops, ScalarType dtype) "
    "-> Tensor",
    cpu=_on_cpu,
    cuda=_on_cuda,
    fake=_like_first,
    derivative=_derivative,
    setup=_setup,
)


def gcn_degrees(
    src: Tensor, row_ptr: Tensor, weight: Tensor | None, fill: float, loops: bool, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes inverse square roots of the degrees, and the weight of each node's self-loop.

    Args:
        src: ``[E]`` int64, sources of edges sorted by destination.
        row_ptr: ``[N + 1]`` int32, see :class:`staticgraph.batches.slots.slots.SlotLayout`.
        weight: ``[E]``, or None if every edge has weight one.
        fill: the weight of an added self-loop.
        loops: whether to add a self-loop to each node without one; an existing self-loop keeps its
            weight (the last one's, if there are several).
        like: a tensor of the features' dtype.

    Returns:
        ``[N]`` and ``[N]``, float32 (float64 if ``like`` is): ``degree ** -0.5``, zero where the
        degree is zero, and the self-loop's weight, zero without ``loops``. Both are differentiable
        once in ``weight``; where the degree is zero the gradient is zero, while PyG's is NaN.
    """
    return _degrees(
        src, row_ptr, None if weight is None else weight.contiguous(), fill, loops, like
    )


def gcn_sum(
    x: Tensor,
    root: Tensor,
    own: Tensor,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
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
        src, dst, row_ptr, col_ptr, transpose: as in :func:`staticgraph.kernels.neighbour_sum`.
        weight: ``[E]``, or None if every edge has weight one.
        bias: ``[F]`` or None.
        loops: skip edges from a node to itself, which ``own`` replaces.
        dtype: dtype of the result; None for that of ``x``.

    Returns:
        ``[N, F]``, differentiable once in ``x``, ``bias``, ``root``, ``own`` and ``weight``.
        Bitwise deterministic.
    """
    return _forward(
        x.contiguous(),
        bias,
        root,
        own,
        None if weight is None else weight.contiguous(),
        src,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        loops,
        x.dtype if dtype is None else dtype,
    )


def _numbers(value: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns a vector in the accumulation dtype; an empty one for None."""
    return torch.empty(0, dtype=dtype) if value is None else value.detach().to(dtype)
