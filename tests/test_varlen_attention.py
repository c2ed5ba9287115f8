"""The operator of attention within graphs of any length: on a CPU, and which kernel of torch's it
calls on a GPU."""

from __future__ import annotations

import pytest
import torch
from support.attending import pair_by_pair

from staticgraph.kernels.varlen_attention import op, varlen_attention


def test_its_loop_equals_attention_pair_by_pair():
    """Forward and gradients, also through torch.compile in one graph; rows after the last graph
    are ignored."""
    torch.manual_seed(0)
    starts = torch.tensor([0, 5, 5, 6, 20, 20], dtype=torch.int32)
    owner = torch.repeat_interleave(torch.arange(5), starts.diff())
    inputs = [torch.randn(23, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    seed = torch.randn(20, 2, 4, dtype=torch.float64)
    expected = pair_by_pair(*(t[:20] for t in inputs), owner)
    wanted = torch.autograd.grad(expected, inputs, seed)
    compiled = torch.compile(varlen_attention, backend="aot_eager", fullgraph=True)
    for function in (varlen_attention, compiled):
        found = function(*inputs, starts, 14)
        torch.testing.assert_close(found[:20], expected)
        for a, b in zip(torch.autograd.grad(found[:20], inputs, seed), wanted, strict=True):
            torch.testing.assert_close(a, b)
    torch.library.opcheck(torch.ops.staticgraph.varlen_attention.default, (*inputs, starts, 14))


@pytest.mark.parametrize("longest", [1, 31, 64])
def test_torchs_kernel_of_float32_has_the_shapes_that_are_said(longest):
    """The private operator takes these arguments and returns the shapes that the fake promises."""
    q, k, v = torch.empty(40, 3, 2, 16, device="meta").unbind(1)
    starts = torch.empty(8, device="meta", dtype=torch.int32)
    out, lse = op.efficient_forward(q, k, v, starts, longest)
    assert out.shape == q.shape
    assert lse.shape == (7, 2, -(-longest // op.LSE_ROWS) * op.LSE_ROWS)
    assert lse.dtype == torch.float32
    for grad in op.efficient_backward(out, q, k, v, out, lse, starts, longest):
        assert (grad.shape, grad.dtype) == (q.shape, q.dtype)


def test_half_precision_on_cuda_goes_to_torchs_public_kernel(monkeypatch):
    """Device and dtype select the kernel; the arguments are in its order."""
    called = []
    monkeypatch.setattr(
        "torch.nn.attention.varlen.varlen_attn", lambda *given: called.append(given) or given[0]
    )

    class OnCuda(torch.Tensor):
        device = property(lambda _: torch.device("cuda"))

    q, k, v = (torch.zeros(6, 2, 8, dtype=torch.bfloat16).as_subclass(OnCuda) for _ in range(3))
    starts = torch.tensor([0, 4, 6], dtype=torch.int32)
    varlen_attention(q, k, v, starts, 5)
    ((*rows, first, second, longest, longest_key),) = called
    assert all(a is b for a, b in zip(rows, (q, k, v), strict=True))
    assert first is starts
    assert second is starts
    assert (longest, longest_key) == (5, 5)
