"""Sums of vectors over neighbours on the CPU: equal to the float64 reference, the same bits on any
number of threads, registered soundly."""

from __future__ import annotations

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_oracle import DTYPES, agree, graphs, random_graph

from staticgraph.kernels import vector_sum
from staticgraph.kernels.vector_sum import vector_sum_reference

threads = importlib.import_module("staticgraph.kernels.threads")
# Where gate, along and scalar begin, in multiples of the width.
PARTS = [(0, None, None), (1, 2, 0), (2, 0, None), (0, None, 1), (0, 1, None)]


@settings(max_examples=40, deadline=None)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    width=st.sampled_from([1, 3, 16, 21]),
    dims=st.sampled_from([1, 3, 8]),
    parts=st.sampled_from(PARTS),
    factors=st.sampled_from([1, 2]),
    fixed=st.booleans(),
)
def test_vector_sum(graph, dtype, width, dims, parts, factors, fixed):
    nodes, src, dst, *pointers = graph
    gate, along, scalar = (None if part is None else part * width for part in parts)
    rows = [torch.randn(n, 3 * width).to(dtype) for n in (len(src), nodes)[:factors]]
    vectors = torch.randn(nodes, dims, width).to(dtype)
    unit = None if along is None else torch.randn(len(src), dims).to(dtype)
    places = (gate, *(-1 if place is None else place for place in (along, scalar)))

    def kernel(edge, vectors=vectors, unit=unit, x=None):
        found = vector_sum(
            *(vectors, edge, unit, src, dst, *pointers),
            x=x,
            gate=gate,
            along=along,
            scalar=scalar,
        )
        return together(*found)

    def reference(edge, vectors=vectors, unit=unit, x=None):
        vectors, unit = (None if one is None else one.double() for one in (vectors, unit))
        return together(*vector_sum_reference(vectors, edge, unit, x, src, dst, places))

    def together(vectors, scalars):
        flat = vectors.flatten(1)
        return flat if scalars is None else torch.cat([flat, scalars], 1)

    # Fixed vectors and directions need no gradient, so none is computed for them.
    tensors = rows[:1] if fixed else [rows[0], vectors, unit, *rows[1:]]
    agree(kernel, reference, tensors, terms=8 + len(src) * dims + width)


@pytest.mark.skipif(not threads.AVAILABLE, reason="torch has no libgomp of its own")
@pytest.mark.parametrize("nodes", [7, 700])
def test_the_bits_are_the_same_on_any_number_of_threads(nodes, monkeypatch):
    monkeypatch.setattr(threads, "SMALL", 0)
    torch.manual_seed(0)
    pointers = random_graph(nodes, 3 * nodes)
    sizes = (nodes, 3, 24), (3 * nodes, 72), (3 * nodes, 3), (nodes, 72)
    given = [torch.randn(size, requires_grad=True) for size in sizes]
    found, before = [], torch.get_num_threads()
    for count in (1, 2, 3, 40):
        torch.set_num_threads(count)
        out, scalars = vector_sum(*given[:3], *pointers, x=given[3], gate=24, along=0, scalar=48)
        total = (out * torch.linspace(-1, 1, 24)).sum() + scalars.square().sum()
        found.append([out, scalars, *torch.autograd.grad(total, given)])
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


def arguments():
    src, dst = torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1])
    row_ptr, col_ptr = torch.tensor([0, 1, 3]).int(), torch.tensor([0, 1, 3]).int()
    sizes = (2, 3, 4), (3, 12), (3, 3), (2, 12)
    given = [torch.randn(size, requires_grad=True) for size in sizes]
    return *given, src, dst, row_ptr, col_ptr, torch.tensor([1, 0, 2]).int(), [4, 8, 0]


def test_registration_is_sound():
    """torch's own checks: schema, fake shapes, and tracing."""
    given = [one.detach() if isinstance(one, torch.Tensor) else one for one in arguments()]
    torch.library.opcheck(torch.ops.staticgraph.vector_sum.default, given)
    back = torch.randn(2, 3, 4), torch.randn(2, 4), *given, True, True
    torch.library.opcheck(torch.ops.staticgraph.vector_sum_backward.default, back)


def test_a_second_derivative_is_refused_by_name():
    vectors, edge, unit, x, *pointers, _ = arguments()
    out, _ = vector_sum(vectors, edge, unit, *pointers, x=x, gate=4, along=8)
    (once,) = torch.autograd.grad(out.square().sum(), vectors, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^staticgraph::vector_sum has no second derivative"):
        once.sum().backward()


def test_parts_that_overlap_are_refused():
    vectors, edge, unit, _, *pointers, _ = arguments()
    with pytest.raises(ValueError, match=r"gate=0, along=2.*4 columns of its own"):
        vector_sum(vectors, edge, unit, *pointers, along=2)
    with pytest.raises(ValueError, match=r"gate=9.*of the 12 of edge"):
        vector_sum(vectors, edge, None, *pointers, gate=9)
    with pytest.raises(ValueError, match="give both"):
        vector_sum(vectors, edge, unit, *pointers)
