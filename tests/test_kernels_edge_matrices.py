"""Sums of neighbours' rows times one matrix per edge, on the CPU: equal to the float64 reference,
the same bits on any number of threads, registered soundly."""

from __future__ import annotations

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_oracle import DTYPES, agree, graphs, random_graph

from staticgraph.kernels import edge_matrix_sum
from staticgraph.kernels.edge_matrix_sum import (
    edge_matrix_sum_handed_on,
    edge_matrix_sum_reference,
)

threads = importlib.import_module("staticgraph.kernels.threads")


@settings(max_examples=40, deadline=None)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    inputs=st.sampled_from([1, 3, 16]),
    outputs=st.sampled_from([1, 5, 16, 21]),
    mean=st.booleans(),
)
def test_edge_matrix_sum(graph, dtype, inputs, outputs, mean):
    nodes, src, dst, *pointers = graph
    tensors = [
        torch.randn(size).to(dtype) for size in ((nodes, inputs), (len(src), inputs, outputs))
    ]
    agree(
        lambda x, matrices: edge_matrix_sum(x, matrices, src, dst, *pointers, mean=mean),
        lambda x, matrices: edge_matrix_sum_reference(x, matrices, src, dst, mean),
        tensors,
        terms=8 + len(src) * inputs + outputs,
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_matrices_handed_on_take_all_their_gradients(dtype):
    """In a layer that is called three times."""
    torch.manual_seed(0)
    pointers = random_graph(40, 90)
    tensors = [torch.randn(40, 5).to(dtype), 0.3 * torch.randn(90, 5, 5).to(dtype)]

    def kernel(x, matrices):
        for _ in range(2):
            out, matrices = edge_matrix_sum_handed_on(x, matrices, *pointers, mean=True)
            x = x + out.tanh()
        return edge_matrix_sum(x, matrices, *pointers)

    def reference(x, matrices):
        for _ in range(2):
            x = x + edge_matrix_sum_reference(x, matrices, *pointers[:2], True).tanh()
        return edge_matrix_sum_reference(x, matrices, *pointers[:2], False)

    agree(kernel, reference, tensors, terms=300)


@pytest.mark.skipif(not threads.AVAILABLE, reason="torch has no libgomp of its own")
@pytest.mark.parametrize("nodes", [7, 700])
def test_the_bits_are_the_same_on_any_number_of_threads(nodes, monkeypatch):
    monkeypatch.setattr(threads, "SMALL", 0)
    torch.manual_seed(0)
    pointers = random_graph(nodes, 3 * nodes)
    x, matrices = (
        torch.randn(size, requires_grad=True) for size in ((nodes, 6), (3 * nodes, 6, 18))
    )
    found, before = [], torch.get_num_threads()
    for count in (1, 2, 3, 40):
        torch.set_num_threads(count)
        out = edge_matrix_sum(x, matrices, *pointers, mean=True)
        total = (out * torch.linspace(-1, 1, 18)).sum()
        found.append([out, *torch.autograd.grad(total, (x, matrices))])
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


def arguments():
    src, dst = torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1])
    pointers = [torch.tensor(one).int() for one in ([0, 1, 3], [0, 1, 3], [1, 0, 2])]
    return torch.randn(2, 4), torch.randn(3, 4, 5), src, dst, *pointers


def test_registration_is_sound():
    """torch's own checks: schema, fake shapes, and tracing."""
    operators, given, grad = torch.ops.staticgraph, arguments(), torch.randn(2, 5)
    torch.library.opcheck(operators.edge_matrix_sum.default, (*given, True))
    for into in (None, torch.randn(3, 4, 5)):
        operands = grad, *given, into, True
        torch.library.opcheck(operators.edge_matrix_sum_backward.default, operands)


def test_a_second_derivative_is_refused_by_name():
    x, *rest = arguments()
    x.requires_grad_()
    (once,) = torch.autograd.grad(edge_matrix_sum(x, *rest).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^staticgraph::edge_matrix_sum has no second deriv"):
        once.sum().backward()
