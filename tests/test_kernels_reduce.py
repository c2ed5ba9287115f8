"""Messages from both ends and the edge under several reductions at once, and rows of both ends, on
the CPU against float64 references; the exponential against NumPy's in a wider dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staticgraph.jit import kernel
from staticgraph.kernels import edge_rows, neighbour_reduce
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.exponential import exp


@kernel
def exponentials(x, out):
    for place in range(len(x)):
        out[place] = exp(x[place])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_is_within_two_units_of_the_last_place(dtype):
    limits = np.finfo(dtype)
    x = np.linspace(np.log(limits.tiny), np.log(limits.max) - 1, 5001).astype(dtype)
    x = np.concatenate([x, np.array([-np.inf, np.log(limits.tiny) - 1, np.inf, np.nan], dtype)])
    out = np.empty_like(x)
    exponentials(x, out)
    expected = np.exp(x[:-4].astype(np.longdouble))
    assert (np.abs(out[:-4] - expected) <= 2 * limits.eps * expected)[1:].all()
    np.testing.assert_array_equal(out[-4:], [0, 0, np.inf, np.nan])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_mean_and_spread_of_what_is_far_from_zero(dtype):
    """A mean of squares would lose the digits of the spread; half precisions keep theirs."""
    torch.manual_seed(0)
    src, dst = torch.arange(40) % 4, torch.arange(40) // 10
    row_ptr = torch.arange(0, 41, 10).int()
    transpose = torch.argsort(src, stable=True).int()
    rows = (1000 + torch.randn(40, 5)).to(dtype)
    edges = Edges(src, dst, row_ptr, row_ptr, transpose)
    out = neighbour_reduce(None, None, rows, edges, reductions=["mean", "std"])[0]
    wide = rows.double().view(4, 10, 5)
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    rounding = torch.finfo(dtype).eps
    assert (out[:, :5].double() - wide.mean(1)).abs().max() <= 1000 * (10 * eps + rounding)
    spread = wide.std(1, correction=0)
    assert torch.allclose(out[:, 5:].double(), spread, rtol=1e4 * eps + rounding, atol=0)


def test_what_cannot_be_reduced_is_named():
    index = torch.zeros(1, dtype=torch.int64)
    where = Edges(index, index, *(torch.tensor([0, 1]).int(),) * 2, index.int())
    x = torch.ones(1, 3)
    with pytest.raises(ValueError, match="message of nothing"):
        neighbour_reduce(None, None, None, where, reductions=["sum"])
    with pytest.raises(ValueError, match="median"):
        neighbour_reduce(x, None, None, where, reductions=["median"])
    with pytest.raises(ValueError, match="tanh"):
        neighbour_reduce(x, None, None, where, reductions=["sum"], activation="tanh")
    with pytest.raises(ValueError, match="2 towers"):
        neighbour_reduce(x, None, None, where, reductions=["sum"], towers=2)
    with pytest.raises(ValueError, match="rows of nothing"):
        edge_rows(None, None, None, where)
