"""``varlen_attention`` as a torch operator: torch's own kernels on CUDA, a loop on a CPU.

Half precisions use flash attention through torch's public ``varlen_attn``. It does not accept
float32, which goes to memory-efficient attention instead. torch has no public name for that with
sequence lengths, so ``aten::_efficient_attention_forward`` is called, with its arguments in torch
2.11 to 2.13, inside an operator of this library. A compiled step therefore sees fixed shapes and
one operator, and a torch version with other arguments fails at this call and nowhere else. Starts
stay on the device and the longest graph is the bucket's constant ``M``: the host reads nothing.

Rows after the last start belong to no graph. CUDA kernels leave them, and their gradients,
unwritten: callers mask both directions with ``torch.where``. There is no dropout and no bias. A
second derivative raises an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.internals import dispatch
from staticgraph.kernels.register import operator
from staticgraph.kernels.varlen_attention import reference

HALVES = (torch.float16, torch.bfloat16)
# Multiple of rows to which the kernel pads its log-sum-exp, for aligned loads in its backward.
LSE_ROWS = 32
NO_CAUSAL_MASK = 0


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> Tensor:
    """Computes attention of each row over the rows of its own graph.

    Args:
        q: ``[N, heads, D]``; float16, bfloat16 or float32 on CUDA, any floating dtype on a CPU.
        k: as ``q``.
        v: as ``q``.
        starts: ``[G + 1]`` int32, ascending from 0; graph ``g`` has rows ``starts[g]`` to
            ``starts[g + 1]``, possibly none.
        longest: upper bound on the rows of a graph.

    Returns:
        ``[N, heads, D]``; rows from ``starts[G]`` on are undefined.
    """
    if q.device.type == "cuda" and q.dtype in HALVES:
        from torch.nn.attention.varlen import varlen_attn

        out = varlen_attn(q, k, v, starts, starts, longest, longest)
        assert isinstance(out, Tensor)
        return out
    return _forward(q, k, v, starts, longest)[0]


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    return reference.forward(q, k, v, starts), q.new_empty(0)


def efficient_forward(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int
) -> tuple[Tensor, Tensor]:
    """Returns output and log-sum-exp of torch's memory-efficient attention, on CUDA."""
    out, lse, *_ = dispatch.efficient_forward(
        q[None],
        k[None],
        v[None],
        None,
        starts,
        starts,
        longest,
        longest,
        0.0,
        NO_CAUSAL_MASK,
        True,
    )
    return out[0], lse


def _fake(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    if q.device.type != "cuda":
        return q.new_empty(q.shape), q.new_empty(0)
    rows = -(-longest // LSE_ROWS) * LSE_ROWS
    shape = (starts.shape[0] - 1, q.shape[1], rows)
    return q.new_empty(q.shape), q.new_empty(shape, dtype=torch.float32)


def _backward_on_cpu(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    starts: Tensor,
    longest: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return reference.backward(grad, q, k, v, starts)


def efficient_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    starts: Tensor,
    longest: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of :func:`efficient_forward`, on CUDA."""
    unread = lse.new_empty((), dtype=torch.int64)  # the random state of dropout, which is off
    dq, dk, dv, _ = dispatch.efficient_backward(
        grad.contiguous()[None],
        q[None],
        k[None],
        v[None],
        None,
        out[None],
        starts,
        starts,
        longest,
        longest,
        lse,
        0.0,
        unread,
        unread,
        NO_CAUSAL_MASK,
        False,
    )
    return dq[0], dk[0], dv[0]


def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (q, k, v))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, starts, longest = inputs
    ctx.save_for_backward(q, k, v, *output, starts)
    ctx.longest = longest


def _gradient(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, starts = ctx.saved_tensors
    return (*_backward(grad, q, k, v, out, lse, starts, ctx.longest), None, None)


_backward = operator(
    "varlen_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    "Tensor starts, SymInt longest) -> (Tensor, Tensor, Tensor)",
    cpu=_backward_on_cpu,
    cuda=efficient_backward,
    fake=_fake_backward,
)
_forward = operator(
    "varlen_attention(Tensor q, Tensor k, Tensor v, Tensor starts, SymInt longest) "
    "-> (Tensor, Tensor)",
    cpu=_on_cpu,
    cuda=efficient_forward,
    fake=_fake,
    derivative=_gradient,
    setup=_setup,
)
