"""The linear layer on CUDA, as far as can be tested without a GPU: its calls, its compiled code,
and autocast; values against the reference where torch's operators are the same on a CPU."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from support.compiled import OLDER, launches
from torch._subclasses.fake_tensor import FakeTensorMode

from staticgraph.dryrun.operations import OperationCounter, operations
from staticgraph.kernels.linear import (
    limits,
    linear_reference,
    small,
)
from staticgraph.rewrites.layers.gradient_sums import product_handed_on


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
def test_relu_is_part_of_the_product(dtype, biased):
    """One operator of torch with a bias; at most one rounding more than the reference."""
    x, weight = torch.randn(50, 30).to(dtype), torch.randn(20, 30).to(dtype)
    bias = torch.randn(20).to(dtype) if biased else None
    with OperationCounter() as counter:
        out = small.by_torch(x, weight, bias, True)
    called = counter.counts["forward"]
    assert called == (
        {"aten::_addmm_activation": 1} if biased else {"aten::mm": 1, "aten::relu_": 1}
    )
    assert operations("staticgraph::linear", (x, weight, bias, True, dtype)) == called.total()
    wide = [None if t is None else t.double() for t in (x, weight, bias)]
    exact = linear_reference(*wide, True)
    usual = (linear_reference(x, weight, bias, True).double() - exact).abs().max()
    least = torch.finfo(dtype).eps * exact.abs().max()
    assert (out.double() - exact).abs().max() <= 2 * max(usual, least)


def test_autocast_keeps_the_fused_layer():
    """Bias, ReLU and casts stay in this library's operators in bfloat16; gradients are float32.
    Tested with CPU autocast on fake tensors, as if the operators took bfloat16 there."""
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16):
        x, weight, bias = (
            torch.empty(shape, requires_grad=True) for shape in ((50, 16), (16, 16), (16,))
        )
        with OperationCounter() as counter:
            out, same = product_handed_on(x, weight, bias, False)
            assert same.dtype == torch.float32, "its other readers read float32"
            second, handed = product_handed_on(out, weight, bias, False)
            assert handed.dtype == torch.bfloat16
            counter.part = "backward"
            total = (second.sum() + handed.sum() + same.sum()).float()
            grads = torch.autograd.grad(total, (x, weight, bias))
    assert (out.dtype, second.dtype) == (torch.bfloat16, torch.bfloat16)
    assert [grad.dtype for grad in grads] == [torch.float32] * 3
    forward, backward = (counter.counts[name] for name in ("forward", "backward"))
    assert forward - Counter({"prim::device": 99}) == {"staticgraph::linear": 2}
    assert backward["staticgraph::linear_backward"] == 2, "two layers of one operation"
    assert backward["aten::_to_copy"] == 1, "the loss's own"


def test_what_goes_by_which_kernels_is_decided_by_shapes(monkeypatch):
    """Backward, few rows take one launch, many go to the library; forward, this library's kernel
    runs where something is cast. The count of operations agrees."""
    called = []

    for name in ("forward", "backward", "by_torch", "backward_by"):
        monkeypatch.setattr(small, name, lambda *given, name=name: called.append(name))
    weight = torch.empty(8, 4)
    most = limits.MAX_ROWS
    for rows, names, launched in (
        (most, ("backward", "forward"), 1),
        (most + 1, ("backward_by", "by_torch"), 4),
    ):
        x, grad = torch.empty(rows, 4), torch.empty(rows, 8)
        given = (grad, x, weight, grad, None, None, None)
        small.backward_on_cuda(*given)
        assert called.pop() == names[0]
        assert operations("staticgraph::linear_backward", given) == launched
        small.on_cuda(x, weight, None, False, torch.bfloat16)
        assert called.pop() == names[1]
        small.on_cuda(x, weight, None, False, torch.float32)
        assert called.pop() == "by_torch"
    small.backward_on_cuda(*(t.double() for t in (grad[:9], x[:9], weight)), *(None,) * 4)
    assert called == ["backward_by"], "float64 has no tensor cores of ours"
    side = 512
    most = limits.MAX_WORK // side**2
    assert limits.fits(most, side, side, torch.float32)
    assert not limits.fits(most + 1, side, side, torch.float32), "more work"
    assert not limits.fits(1, limits.MAX_WIDTH + 1, 1, torch.float32), "wider"
    for width, dtype in itertools.product((128, limits.MAX_WIDTH), limits.FLOATS):
        side = small.backward_tiles(width, limits.MAX_WIDTH, dtype)["SIDE"]
        tiles = -(-width // side) * -(-limits.MAX_WIDTH // side)
        assert tiles <= limits.TICKETS, "each tile of a weight has a ticket of its own"


# Two warps with 183 registers were the fastest on an H200; what Triton 3.9 takes beyond 192.
MOST = {(64, 192, torch.float32): 213, (300, 1, torch.bfloat16): 200}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("width", "columns", "dtype"),
    [
        (300, 300, torch.float32),
        (300, 300, torch.bfloat16),
        (64, 192, torch.bfloat16),
        (64, 192, torch.float32),
        (300, 1, torch.float32),
        (300, 1, torch.bfloat16),
    ],
)
def test_a_backward_is_one_launch_that_stays_in_registers(width, columns, dtype):
    """Compiled for sm_90 at the widths of common models: vector loads of features, products on
    tensor cores; over 500 rows each program of a weight's tile draws a ticket."""
    x, weight = torch.zeros(125, width, dtype=dtype), torch.zeros(columns, width)
    grad = torch.zeros(125, columns, dtype=dtype)
    weight = weight if dtype == torch.bfloat16 else weight.to(dtype)
    (one,) = launches(small.backward, grad, x, weight, grad, x, weight, None)
    (forward,) = launches(small.forward, x, weight, weight[:, 0].contiguous(), True, dtype)
    more = [t.repeat(4, 1) for t in (grad, x)]
    tickets = torch.zeros(limits.TICKETS, dtype=torch.int32)
    (joined,) = launches(small.backward, *more, weight, *(None,) * 3, tickets)
    assert (one.atomics, forward.atomics, len(joined.atomics)) == ([], [], 1)
    for each in (one, joined, forward):
        assert each.matrix_instructions > 0
        assert each.registers <= MOST.get((width, columns, dtype), 192)
        assert each.spilled <= (8 if OLDER else 0)
        assert each.widest("ld") >= 32 * dtype.itemsize
    assert one.widest("st") >= 32 * dtype.itemsize
