"""Messages from both ends and the edge under several reductions at once, and rows of both ends, on
the CPU against float64 references; the exponential against NumPy's in a wider dtype."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from support.kernel_oracle import DTYPES, agree, graphs

from staticgraph.jit import kernel
from staticgraph.kernels import edge_rows, neighbour_reduce
from staticgraph.kernels.edge_rows import edge_rows_reference
from staticgraph.kernels.exponential import exp
from staticgraph.kernels.neighbour_reduce import (
    ACTIVATIONS,
    REDUCTIONS,
    neighbour_reduce_reference,
)

ENDS = [(True, True, True), (True, False, True), (True, True, False), (False, False, True)]


def steps(*shape: int) -> torch.Tensor:
    """Values from a small set, so that many are equal, some of them zero."""
    return torch.randint(-3, 4, shape) / 2


def given_operands(graph, width, dtype, which, coded):
    nodes, src, *_ = graph
    rows = 3 if coded else len(src)
    shapes = (nodes, nodes, rows)
    return [
        steps(count, width).to(dtype) if there else None
        for count, there in zip(shapes, which, strict=True)
    ]


@examples(80)
@given(
    graph=graphs(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    towers=st.integers(1, 2),
    which=st.sampled_from(ENDS),
    coded=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    reductions=st.lists(st.sampled_from(REDUCTIONS), min_size=1, max_size=4, unique=True),
)
def test_neighbour_reduce(graph, dtype, towers, which, coded, activation, reductions):
    nodes, src, dst, *pointers = graph
    code = torch.arange(len(src)) % 3 if coded and which[2] else None
    tensors = given_operands(graph, 3 * towers, dtype, which, code is not None)
    if activation in ("silu", "sigmoid"):  # their rounding would break ties
        reductions = [one for one in reductions if one not in ("min", "max")] or ["mean"]
    options = {"reductions": reductions, "towers": towers, "activation": activation}

    def ours(*parts):
        return neighbour_reduce(*parts, src, dst, *pointers, code=code, slope=0.2, **options)

    def right(*parts):
        given = code, src, dst, nodes, activation, 0.2, reductions, towers
        return neighbour_reduce_reference(*parts, *given)

    agree(ours, right, tensors, terms=4000)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mean_and_spread_of_what_is_far_from_zero(dtype):
    """A mean of squares would lose the digits of the spread; half precisions keep theirs."""
    torch.manual_seed(0)
    src, dst = torch.arange(40) % 4, torch.arange(40) // 10
    row_ptr = torch.arange(0, 41, 10).int()
    transpose = torch.argsort(src, stable=True).int()
    rows = (1000 + torch.randn(40, 5)).to(dtype)
    given = src, dst, row_ptr, row_ptr, transpose
    out = neighbour_reduce(None, None, rows, *given, reductions=["mean", "std"])[0]
    wide = rows.double().view(4, 10, 5)
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    rounding = torch.finfo(dtype).eps
    assert (out[:, :5].double() - wide.mean(1)).abs().max() <= 1000 * (10 * eps + rounding)
    spread = wide.std(1, correction=0)
    assert torch.allclose(out[:, 5:].double(), spread, rtol=1e4 * eps + rounding, atol=0)


def test_what_cannot_be_reduced_is_named():
    index = torch.zeros(1, dtype=torch.int64)
    where = index, index, *(torch.tensor([0, 1]).int(),) * 2, index.int()
    x = torch.ones(1, 3)
    with pytest.raises(ValueError, match="message of nothing"):
        neighbour_reduce(None, None, None, *where, reductions=["sum"])
    with pytest.raises(ValueError, match="median"):
        neighbour_reduce(x, None, None, *where, reductions=["median"])
    with pytest.raises(ValueError, match="tanh"):
        neighbour_reduce(x, None, None, *where, reductions=["sum"], activation="tanh")
    with pytest.raises(ValueError, match="2 towers"):
        neighbour_reduce(x, None, None, *where, reductions=["sum"], towers=2)
    with pytest.raises(ValueError, match="rows of nothing"):
        edge_rows(None, None, None, *where)


@examples(40)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    which=st.sampled_from([*ENDS, (False, True, False), (True, False, False)]),
    coded=st.booleans(),
)
def test_edge_rows(graph, dtype, which, coded):
    _, src, dst, *pointers = graph
    code = torch.arange(len(src)) % 3 if coded and which[2] else None
    agree(
        lambda *parts: edge_rows(*parts, src, dst, *pointers, code=code),
        lambda *parts: edge_rows_reference(*parts, code, src, dst),
        given_operands(graph, 3, dtype, which, code is not None),
        terms=64,
    )


@kernel
def exponentials(values, out):
    for i in range(len(values)):
        out[i] = exp(values[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_is_within_two_units_of_the_last_place(dtype):
    values = np.concatenate([np.linspace(-87, 88, 20001), np.linspace(-1, 1, 2001)]).astype(dtype)
    out = np.empty_like(values)
    exponentials(values, out)
    wide = np.exp(values.astype(np.longdouble))
    assert np.max(np.abs(out - wide) / wide) <= 2 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_of_what_is_no_ordinary_number(dtype):
    values = np.array([np.nan, np.inf, -np.inf, -1e30, 1e30, 0, -0.0], dtype)
    out = np.empty_like(values)
    exponentials(values, out)
    assert np.array_equal(out, np.array([np.nan, np.inf, 0, 0, np.inf, 1, 1], dtype), True)
