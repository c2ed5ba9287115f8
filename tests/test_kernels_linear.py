"""The linear layer on CUDA, as far as a machine without one can see: what it calls, and under
autocast; values against the reference where torch's operators are the same on a CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from staticgraph.dryrun.operations import OperationCounter, operations
from staticgraph.kernels.linear import gpu, linear_reference
from staticgraph.nn.fused import linear as fused


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
def test_relu_is_part_of_the_product(dtype, biased):
    """One operator of torch, which rounds once more than the reference at the most."""
    torch.manual_seed(0)
    x, weight = torch.randn(50, 30).to(dtype), torch.randn(20, 30).to(dtype)
    bias = torch.randn(20).to(dtype) if biased else None
    with OperationCounter() as counter:
        out = gpu.forward(x, weight, bias, True)
    called = counter.operations.counts["forward"]
    assert called == (
        {"aten::_addmm_activation": 1} if biased else {"aten::mm": 1, "aten::relu_": 1}
    )
    assert operations("staticgraph::linear", (x, weight, bias, True)) == called.total()
    wide = [None if t is None else t.double() for t in (x, weight, bias)]
    exact = linear_reference(*wide, True)
    usual = (linear_reference(x, weight, bias, True).double() - exact).abs().max()
    least = torch.finfo(dtype).eps * exact.abs().max()
    assert (out.double() - exact).abs().max() <= 2 * max(usual, least)


def on_cuda(dtype):
    """As much of a tensor as the question reads."""
    return SimpleNamespace(device=torch.device("cuda"), dtype=dtype, dim=lambda: 2)


def test_autocast_on_cuda_is_no_obstacle(monkeypatch):
    single, half, double = (on_cuda(t) for t in (torch.float32, torch.bfloat16, torch.float64))
    assert fused.linear_obstacle(single, single) is None
    assert "of the weight's dtype" in fused.linear_obstacle(half, single)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert fused.linear_obstacle(single, single) is None
    assert fused.linear_obstacle(half, single) is None
    assert "float64" in fused.linear_obstacle(double, double)


def test_autocast_keeps_the_fused_layer(monkeypatch):
    """Bias, ReLU and mask stay in our operators in bfloat16; gradients come back in float32. On a
    CPU's autocast, by shapes and dtypes alone, as though our operators took bfloat16 there."""
    monkeypatch.setattr(fused, "linear_obstacle", lambda *_: None)
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        x, weight, bias = (
            torch.empty(shape, requires_grad=True) for shape in ((50, 16), (16, 16), (16,))
        )
        with OperationCounter() as counter:
            out, same = fused.handed_on(x, weight, bias, relu=True)
            assert same is x, "its other readers read float32"
            second, handed = fused.product_handing_on(out, weight, bias)
            assert handed.dtype == torch.bfloat16
            with counter.part("backward"):
                total = (second.sum() + handed.sum()).float()
                grads = torch.autograd.grad(total, (x, weight, bias))
    assert (out.dtype, second.dtype) == (torch.bfloat16, torch.bfloat16)
    assert [grad.dtype for grad in grads] == [torch.float32] * 3
    forward, backward = (counter.operations.counts[name] for name in ("forward", "backward"))
    assert forward["staticgraph::linear"] == 2
    assert backward["staticgraph::linear_backward"] == 6, "two layers of three operations"
    assert not {"aten::addmm", "aten::linear", "aten::relu"} & forward.keys()
