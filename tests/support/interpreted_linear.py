"""Linear layers of few rows, masked sums and dropout in Triton's interpreter, against references.

Started by test_kernels_triton.py in a separate process, like interpreted_kernels.py.
"""

from __future__ import annotations

import os

import pytest
import torch

from support.interpreted_oracle import DTYPES, close
from support.sampled import in_turn

assert os.environ.get("TRITON_INTERPRET") == "1"

from staticgraph.kernels.dropout_sum import dropout_sum_reference  # noqa: E402
from staticgraph.kernels.dropout_sum import gpu as dropout  # noqa: E402
from staticgraph.kernels.linear import gpu as dense  # noqa: E402
from staticgraph.kernels.linear import limits, linear_reference  # noqa: E402
from staticgraph.kernels.linear import small as small_dense  # noqa: E402


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relu", [False, True])
def test_dropout_sum(dtype, relu):
    """Forward equals the reference for the kept values; backward keeps the same; p is right."""
    torch.manual_seed(0)
    x, residual = torch.randn(2, 90, 20).to(dtype)
    seed, p, gate = torch.tensor([3]), 0.25, None
    kept = dropout.fill(torch.ones(90, 20), None, None, seed, 4, p) > 0
    gate = x if relu else None
    expected = dropout_sum_reference(x.double(), residual.double(), kept, p, relu)
    assert close(dropout.fill(x, gate, residual, seed, 4, p), expected, 2)
    grad = torch.ones_like(x)
    alive = kept & (x > 0) if relu else kept
    assert torch.equal(dropout.fill(grad, gate, None, seed, 4, p) > 0, alive)
    assert abs(kept.double().mean() - (1 - p)) < 5 * (p * (1 - p) / kept.numel()) ** 0.5
    assert not torch.equal(kept, dropout.fill(torch.ones(90, 20), None, None, seed, 5, p) > 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_sums(dtype, monkeypatch):
    """ReLU's mask and the bias's gradient, over chunks of two blocks, the last one incomplete."""
    monkeypatch.setattr(dense, "MAX_CHUNKS", 4)
    torch.manual_seed(0)
    grad, out = torch.randn(110, 70).to(dtype), torch.randn(110, 70).relu().to(dtype)
    masked, sums = dense.masked_sums(grad, out)
    expected = torch.where(out > 0, grad, 0)
    assert torch.equal(masked, expected)
    assert close(sums, expected.double().sum(0), 110)


SIZES = [(163, 33, 17), (40, 70, 40), (1, 5, 1), (32, 64, 66)]
# Not float32 of what is held in bfloat16, since autocast casts to the narrower dtype alone.
HELD = [
    (torch.float32, torch.float32, True),
    (torch.bfloat16, torch.float32, True),
    (torch.bfloat16, torch.bfloat16, False),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rows", "width", "columns", "dtype", "held", "relu"), in_turn(SIZES, HELD)
)
def test_linear_of_few_rows(dtype, held, relu, rows, width, columns, monkeypatch):
    """All tiles of a launch, one chunk, and two chunks of several steps.

    Operands stay in float32 for half-precision results, gradients have the dtypes of the operands.
    Operands have few digits, since the interpreter truncates and the device rounds.
    """
    if rows == 163:
        monkeypatch.setattr(limits, "ROWS_A_CHUNK", 128)
        assert limits.chunks_of(rows) == (2, 128)
    torch.manual_seed(0)
    x, into = (torch.randn(2, rows, width) + 0.1).to(dtype).to(held)
    weight, bias = (torch.randn(size).to(dtype).to(held) for size in ((columns, width), columns))
    grad = torch.randn(rows, columns).to(dtype)
    out = small_dense.forward(x, weight, bias, relu, dtype)
    into = into if relu else None
    found = small_dense.backward(grad, x, weight, out if relu else None, into)
    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    plain = linear_reference(*wide, False)
    assert out.dtype == dtype
    assert close(out, plain.relu() if relu else plain, width)
    kept = grad.double() * (out > 0) if relu else grad.double()
    gradients = list(torch.autograd.grad(plain, wide, kept))
    gradients[0] = gradients[0] if into is None else gradients[0] + into
    for ours, exactly, terms in zip(found, gradients, (columns, rows, rows), strict=True):
        assert ours.dtype == held
        assert close(ours, exactly, terms)
    again = small_dense.backward(grad, x, weight, out if relu else None, into)
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))


def test_linear_keeps_a_nan_and_reads_no_row_beyond():
    """A non-finite value must appear in its own rows and columns and in no other."""
    x, weight, grad = torch.ones(40, 5), torch.ones(3, 5), torch.ones(40, 3)
    grad[7, 1] = torch.nan
    dx, dweight, dbias = small_dense.backward(grad, x, weight, None, None)
    assert torch.isnan(dx).any(1).nonzero().tolist() == [[7]]
    assert (
        torch.isnan(dweight).all(1).tolist() == torch.isnan(dbias).tolist() == [False, True, False]
    )
