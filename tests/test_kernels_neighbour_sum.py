"""Sums over neighbours on the CPU, by target and by source, against float64 references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_oracle import DTYPES, agree, graphs, random_graph

from staticgraph.kernels import neighbour_sum
from staticgraph.kernels.edge_rows import source_sum
from staticgraph.kernels.neighbour_sum import (
    each_edge,
    neighbour_sum_handed_on,
    neighbour_sum_reference,
)


@settings(max_examples=60, deadline=None)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    width=st.sampled_from([1, 2, 3, 4, 5, 8, 19]),
    mean=st.booleans(),
    eps=st.sampled_from([None, 0.0, 0.4, -1.0]),
    operand=st.sampled_from(
        ["none", "scalar", "fixed", "edge", "relu", "table", "relu table", "weighed relu"]
    ),
)
def test_neighbour_sum(graph, dtype, width, mean, eps, operand):
    nodes, src, dst, *pointers = graph
    table = "table" in operand
    code = torch.randint(3, src.shape) if table else None
    rows = 3 if table else len(src)
    edge = None
    if operand != "none":
        single = operand in ("scalar", "fixed")
        edge = torch.randn((rows,) if single else (rows, width)).to(dtype)
    kind = "copy" if edge is None else "relu_add" if "relu" in operand else "multiply"
    self_eps = None if eps is None else torch.tensor([eps])
    weight = torch.randn(len(src)).to(dtype) if "weighed" in operand else None
    options = {"code": code, "self_eps": self_eps, "weight": weight, "transform": kind}

    def kernel(x, edge=None):
        return neighbour_sum(x, edge, src, dst, *pointers, mean=mean, **options)

    def reference(x, edge=None):
        return neighbour_sum_reference(x, edge, code, src, dst, self_eps, kind, mean, weight)

    x = torch.randn(nodes, width).to(dtype)
    terms = 4 + len(src) + width
    if operand == "fixed":  # weights that need no gradient get none
        fixed = edge
        agree(lambda x: kernel(x, fixed), lambda x: reference(x, fixed.to(x)), [x], terms=terms)
    else:
        agree(kernel, reference, [x] if edge is None else [x, edge], terms=terms)


@settings(max_examples=20, deadline=None)
@given(graph=graphs(), dtype=st.sampled_from(DTYPES), width=st.integers(1, 5))
def test_source_sum(graph, dtype, width):
    nodes, src, dst, *pointers = graph

    def reference(rows):
        wide = torch.promote_types(rows.dtype, torch.float32)
        return rows.new_zeros(nodes, width, dtype=wide).index_add(0, src, rows.to(wide)).to(rows)

    rows = torch.randn(len(src), width).to(dtype)
    agree(lambda r: source_sum(r, src, dst, *pointers), reference, [rows], terms=4 + len(src))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["copy", "multiply", "relu_add"])
def test_neighbour_sum_has_a_gradient_by_eps(dtype, kind):
    """For a parameter of shape ``[1]``, as in PyG's layers, in its own dtype."""
    src, dst = torch.tensor([1, 2, 0, 2, 1]), torch.tensor([0, 0, 1, 1, 2])
    row_ptr, col_ptr = torch.tensor([0, 2, 4, 5]).int(), torch.tensor([0, 1, 3, 5]).int()
    transpose = src.argsort(stable=True).int()
    x, eps = torch.randn(3, 4).to(dtype), torch.randn(1).to(dtype)
    edge = None if kind == "copy" else torch.randn(5, 4).to(dtype)

    def kernel(x, edge, eps):
        pointers = (src, dst, row_ptr, col_ptr, transpose)
        return neighbour_sum(x, edge, *pointers, self_eps=eps, transform=kind, mean=True)

    def reference(x, edge, eps):
        return neighbour_sum_reference(x, edge, None, src, dst, eps, kind, True)

    agree(kernel, reference, [x, edge, eps], terms=24)


def test_neighbour_sum_keeps_a_nan_and_refuses_a_wrong_operand():
    one = torch.tensor([0])
    pointers = (torch.tensor([0, 1]).int(), torch.tensor([0, 1]).int(), one.int())
    x = torch.full((1, 2), float("nan"))
    out = neighbour_sum(x, torch.zeros(1, 2), one, one, *pointers, transform="relu_add")
    assert out.isnan().all()
    with pytest.raises(ValueError, match="'relu_add' needs an edge operand"):
        neighbour_sum(x, None, one, one, *pointers, transform="relu_add")
    with pytest.raises(ValueError, match="weights of messages are for 'relu_add'"):
        neighbour_sum(x, None, one, one, *pointers, weight=x[:, 0])
    trained = torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="requires_grad=True; weights"):
        neighbour_sum(x, x, one, one, *pointers, weight=trained, transform="relu_add")
    with pytest.raises(ValueError, match="choose one of copy, multiply, relu_add"):
        neighbour_sum(x, None, one, one, *pointers, transform="max")


@pytest.mark.parametrize("operand", ["none", "edge", "table", "each"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_operands_handed_on_take_all_their_gradients(operand, dtype):
    """A chain of two layers with residuals, compared with autograd's sums in float64."""
    torch.manual_seed(0)
    pointers, code = random_graph(40, 90), None
    x, edge = torch.randn(40, 5).to(dtype), None
    if operand != "none":
        edge = torch.randn(90 if operand == "edge" else 7, 5).to(dtype)
    if operand in ("table", "each"):
        code = torch.randint(7, (90,))
    transform = "copy" if edge is None else "relu_add"
    options = {"code": code, "self_eps": torch.tensor([0.2]), "transform": transform}

    def kernel(x, edge=None):
        rows, each = edge, each_edge(edge, code) if operand == "each" else None
        out, x, after = neighbour_sum_handed_on(
            x, rows, *pointers, edge_too=True, each=each, **options
        )
        h = out.tanh() + x
        if each is None:
            rows = after
        else:
            each = after
        again = neighbour_sum_handed_on(h, rows, *pointers, each=each, **options)
        return again.out + again.x

    def reference(x, edge=None):
        def layer(value):
            return neighbour_sum_reference(
                value, edge, code, *pointers[:2], options["self_eps"], transform, False
            )

        h = layer(x).tanh() + x
        return layer(h) + h

    tensors = [x] if edge is None else [x, edge]
    agree(kernel, reference, tensors, terms=200)
