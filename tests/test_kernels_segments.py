"""Max, softmax and attention over segments on the CPU, against their references in float64.

The bounds are those of tests/test_kernels_cpu.py. For maxima, values are multiples of a half, so
that ties, also between zeros, are frequent.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_oracle import DTYPES, agree, graphs

from staticgraph.kernels import (
    dot_attention,
    gcn_degrees,
    gcn_sum,
    neighbour_attention,
    neighbour_max,
    pair_score,
    segment_max,
    segment_softmax,
    segment_sum,
)
from staticgraph.kernels.dot_attention import dot_attention_reference
from staticgraph.kernels.gcn_sum import gcn_degrees_reference, gcn_sum_reference
from staticgraph.kernels.neighbour_attention import neighbour_attention_reference
from staticgraph.kernels.neighbour_max import neighbour_max_reference
from staticgraph.kernels.pair_score import pair_score_reference
from staticgraph.kernels.segments import (
    segment_max_reference,
    segment_softmax_reference,
    segment_sum_reference,
)

PTR = torch.tensor([0, 0, 3, 40, 41, 41])


def steps(*shape: int) -> torch.Tensor:
    """Values from a small set, so that many are equal; half of them are negative."""
    return torch.randint(-3, 3, shape) / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_segment_max(dtype):
    torch.manual_seed(0)
    agree(
        lambda values: segment_max(values, PTR),
        lambda values: segment_max_reference(values, PTR),
        [torch.cat([steps(40, 7).clamp(max=0), steps(1, 7)]).to(dtype)],
        terms=4,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_segment_softmax(dtype):
    """With scores so far apart that an exponential without the shift would overflow."""
    torch.manual_seed(0)
    values = torch.randn(41, 7).to(dtype)
    values[5] += 1000
    agree(
        lambda values: segment_softmax(values, PTR),
        lambda values: segment_softmax_reference(values, PTR),
        [values],
        terms=2 * 37,
    )


def test_row_pointers_serve_as_segments():
    """A node's incoming edges are a segment, for sum, max and softmax, in the pointers' dtype."""
    values = torch.randn(41, 3).double()
    for kernel, reference in (
        (segment_max, segment_max_reference),
        (segment_softmax, segment_softmax_reference),
        (lambda v, p: segment_sum(v, p, mean=True), lambda v, p: segment_sum_reference(v, p, True)),
    ):
        assert torch.allclose(kernel(values, PTR.int()), reference(values, PTR))


@settings(max_examples=40, deadline=None)
@given(graph=graphs(), dtype=st.sampled_from(DTYPES), edged=st.booleans(), width=st.integers(1, 5))
def test_neighbour_max(graph, dtype, edged, width):
    nodes, src, dst, *pointers = graph

    def kernel(x, edge=None):
        return neighbour_max(x, edge, src, dst, *pointers)

    def reference(x, edge=None):
        return neighbour_max_reference(x, edge, src, dst)

    tensors = [steps(nodes, width).to(dtype)]
    tensors += [steps(len(src), width).to(dtype)] if edged else []
    agree(kernel, reference, tensors, terms=4 + len(src))


@settings(max_examples=40, deadline=None)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    width=st.sampled_from([1, 3, 16, 21]),
    loops=st.booleans(),
)
def test_gcn_sum_of_learnt_weights(graph, dtype, width, loops):
    """Also through the degrees; a degree of zero has no gradient, while PyG's is NaN."""
    nodes, src, dst, *pointers = graph

    def kernel(x, weight):
        root, own = gcn_degrees(src, pointers[0], weight, 2.0, loops, x.detach())
        return gcn_sum(x, root, own, src, dst, *pointers, weight=weight, loops=loops)

    def reference(x, weight):
        root, own = gcn_degrees_reference(src, dst, nodes, weight, 2.0, loops)
        return gcn_sum_reference(x, None, root, own, weight, src, dst, loops)

    tensors = [torch.randn(nodes, width).to(dtype), (torch.rand(len(src)) + 0.5).to(dtype)]
    agree(kernel, reference, tensors, terms=40 + len(src) + width)


@settings(max_examples=40, deadline=None)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    weighted=st.booleans(),
    biased=st.booleans(),
    loops=st.booleans(),
)
def test_gcn_sum(graph, dtype, weighted, biased, loops):
    nodes, src, dst, *pointers = graph
    weight = torch.rand(len(src)).double() if weighted else None
    like = torch.empty(0, dtype=torch.float64)
    root, own = gcn_degrees(src, pointers[0], weight, 2.0, loops, like)
    expected = gcn_degrees_reference(src, dst, nodes, weight, 2.0, loops)
    assert torch.allclose(root, expected[0])
    assert torch.equal(own, expected[1])

    def kernel(x, bias=None):
        return gcn_sum(x, root, own, src, dst, *pointers, weight=weight, bias=bias, loops=loops)

    def reference(x, bias=None):
        return gcn_sum_reference(x, bias, root, own, weight, src, dst, loops)

    tensors = [torch.randn(nodes, 3).to(dtype)]
    tensors += [torch.randn(3).to(dtype)] if biased else []
    agree(kernel, reference, tensors, terms=4 + len(src) + nodes)


@settings(max_examples=60, deadline=None)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    heads=st.integers(1, 3),
    width=st.sampled_from([1, 3, 9]),
    operands=st.sampled_from(["pair", "edge", "pair edge", "pair edge own", "own", "edge own", ""]),
    loops=st.booleans(),
    slope=st.sampled_from([1.0, 0.2]),
)
def test_neighbour_attention(graph, dtype, heads, width, operands, loops, slope):
    nodes, src, dst, *pointers = graph
    made = {
        "pair": torch.randn(heads, nodes, 2),
        "edge": torch.randn(len(src), heads),
        "own": torch.randn(nodes, heads),
    }
    chosen = [name for name in operands.split() if loops or name != "own"]

    def kernel(x, *scores):
        named = dict(zip(chosen, scores, strict=True))
        options = {"heads": heads, "slope": slope, "loops": loops}
        return neighbour_attention(x, src, dst, *pointers, **named, **options)

    def reference(x, *scores):
        named = dict(zip(chosen, scores, strict=True))
        three = (named.get(name) for name in ("pair", "edge", "own"))
        return neighbour_attention_reference(x, *three, src, dst, heads, slope, loops)

    tensors = [torch.randn(nodes, heads * width).to(dtype)]
    tensors += [made[name].to(dtype) for name in chosen]
    # A score's gradient sums over width and edges; in bfloat16 it starts from a rounded result.
    terms = 8 * (4 + len(src)) * (4 + width)
    if dtype == torch.bfloat16:
        terms = 2**16 * (2 + width)  # in units of float32: two bits of bfloat16 per column
    agree(kernel, reference, tensors, terms)


@settings(max_examples=40, deadline=None)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    heads=st.integers(1, 3),
    width=st.sampled_from([1, 3, 6]),
    operands=st.sampled_from([(), ("edge",), ("own",), ("edge", "own")]),
)
def test_pair_score(graph, dtype, heads, width, operands):
    nodes, src, dst, *pointers = graph
    rows = {"edge": torch.randn(len(src), heads * width), "own": torch.randn(nodes, heads * width)}

    def kernel(left, right, weight, *more):
        named = dict(zip(operands, more, strict=True))
        return torch.cat(pair_score(left, right, weight, src, dst, *pointers, **named, slope=0.2))

    def reference(left, right, weight, *more):
        named = dict(zip(operands, more, strict=True))
        two = (named.get(name) for name in ("edge", "own"))
        return torch.cat(pair_score_reference(left, right, weight, *two, src, dst, 0.2))

    tensors = [torch.randn(nodes, heads * width), torch.randn(nodes, heads * width)]
    tensors += [torch.randn(heads, width), *(rows[name] for name in operands)]
    agree(kernel, reference, [t.to(dtype) for t in tensors], terms=4 + width + len(src) + nodes)


@settings(max_examples=60, deadline=None)
@given(
    graph=graphs(),
    dtype=st.sampled_from(DTYPES),
    heads=st.integers(1, 3),
    width=st.sampled_from([1, 3, 9, 16]),
    columns=st.sampled_from([1, 8]),
    edges=st.sampled_from(["", "key", "value", "key value"]),
    rows=st.sampled_from([None, 1, 3]),
)
def test_dot_attention(graph, dtype, heads, width, columns, edges, rows):
    nodes, src, dst, *pointers = graph
    to_key, to_value = "key" in edges, "value" in edges
    columns = width if edges == "key value" else columns
    code = None if rows is None or not edges else torch.randint(rows, (len(src),))
    more = len(src) if code is None else rows
    options = {"heads": heads, "scale": width**-0.5, "to_key": to_key, "to_value": to_value}

    def kernel(query, key, value, edge=None):
        given = {"edge": edge, "code": code, **options}
        return dot_attention(query, key, value, src, dst, *pointers, **given)

    def reference(query, key, value, edge=None):
        return dot_attention_reference(query, key, value, edge, code, src, dst, *options.values())

    shapes = [(nodes, heads * width)] * 2 + [(nodes, heads * columns)]
    if edges:
        shapes.append((more, heads * (width if to_key else columns)))
    terms = 8 * (4 + len(src)) * (4 + width + columns)
    if dtype == torch.bfloat16:
        terms = 2**16 * (2 + columns)  # as above
    agree(kernel, reference, [torch.randn(shape).to(dtype) for shape in shapes], terms)


def test_dot_products_are_so_far_apart_that_an_exponential_would_overflow():
    one = torch.tensor([0, 0])
    where = (torch.tensor([0, 1]), one, *(torch.tensor(v).int() for v in ([0, 2, 2], [0, 1, 2])))
    query, key = torch.full((2, 1), 100.0), torch.tensor([[90.0], [-90.0]])
    out = dot_attention(query, key, torch.tensor([[3.0], [5.0]]), *where, one.int(), heads=1)
    assert out.tolist() == [[3.0], [0.0]]  # a node without edges gets zero


def test_dot_products_are_given_in_another_dtype():
    one = torch.tensor([0])
    where = (one, one, *(torch.tensor(v).int() for v in ([0, 1], [0, 1], [0])))
    half = torch.full((1, 2), 1.0, dtype=torch.bfloat16)
    assert dot_attention(half, half, half, *where, heads=1).dtype == torch.bfloat16
    assert dot_attention(half, half, half.float(), *where, heads=2).dtype == torch.float32
    out = dot_attention(half, half, half, *where, heads=1, dtype=torch.float32)
    assert out.dtype == torch.float32


def test_a_nan_stays_one():
    one, nan = torch.tensor([0]), torch.full((1, 2), float("nan"))
    where = (one, one, *(torch.tensor(v).int() for v in ([0, 1], [0, 1], [0])))
    root = torch.ones(1)
    for out in (
        segment_max(torch.cat([torch.ones(1, 2), nan, torch.ones(1, 2)]), torch.tensor([0, 3])),
        segment_softmax(nan, torch.tensor([0, 1])),
        neighbour_max(nan, None, *where),
        neighbour_max(nan, torch.zeros(1, 2), *where),
        neighbour_attention(nan, *where, heads=1),
        neighbour_attention(torch.ones(1, 2), *where, heads=1, edge=nan[:, :1], loops=False),
        gcn_sum(nan, root, root, *where),
        dot_attention(nan, torch.ones(1, 2), torch.ones(1, 2), *where, heads=1),
        dot_attention(torch.ones(1, 2), torch.ones(1, 2), nan, *where, heads=2),
        pair_score(nan, nan, torch.ones(1, 2), *where, slope=0.2)[0],
    ):
        assert out.isnan().all()


def test_attention_refuses_what_has_no_meaning():
    one = torch.tensor([0])
    where = (one, one, *(torch.tensor(v).int() for v in ([0, 1], [0, 1], [0])))
    with pytest.raises(ValueError, match="3 columns cannot be cut into 2 heads"):
        neighbour_attention(torch.ones(1, 3), *where, heads=2)
    with pytest.raises(ValueError, match="pass loops=True"):
        neighbour_attention(torch.ones(1, 2), *where, heads=1, own=torch.ones(1, 1), loops=False)
    two, three = torch.ones(1, 2), torch.ones(1, 3)
    with pytest.raises(ValueError, match="3 columns cannot be cut into 2 heads"):
        dot_attention(two, two, three, *where, heads=2)
    with pytest.raises(ValueError, match="queries of 2 columns and keys of 3"):
        dot_attention(two, three, two, *where, heads=1)
    with pytest.raises(ValueError, match="added nowhere"):
        dot_attention(two, two, two, *where, heads=1, edge=two, to_key=False, to_value=False)
    with pytest.raises(ValueError, match="edge has 3 columns, what it is added to has 2"):
        dot_attention(two, two, three, *where, heads=1, edge=three)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


SRC, DST = torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1])
POINTERS = tuple(torch.tensor(v).int() for v in ([0, 1, 3], [0, 1, 3], [1, 0, 2]))
WHERE = (SRC, DST, *POINTERS)
ARGUMENTS = {
    "segment_max": lambda: (leaf(9, 4), torch.tensor([0, 4, 9])),
    "segment_softmax": lambda: (leaf(9, 4), torch.tensor([0, 4, 9])),
    "neighbour_max": lambda: (leaf(2, 4), leaf(3, 4), *WHERE),
    "gcn_degrees": lambda: (
        SRC,
        POINTERS[0],
        torch.rand(3, requires_grad=True),
        1.0,
        True,
        torch.empty(0),
    ),
    "gcn_sum": lambda: (
        leaf(2, 4),
        leaf(4),
        torch.rand(2),
        leaf(2),
        leaf(3),
        *WHERE,
        True,
        torch.float32,
    ),
    "neighbour_attention": lambda: (
        leaf(2, 4),
        leaf(2, 2, 2),
        leaf(3, 2),
        leaf(2, 2),
        *WHERE,
        2,
        0.2,
        True,
        torch.float32,
    ),
    "dot_attention": lambda: (
        *(leaf(2, 4), leaf(2, 4), leaf(2, 4), leaf(2, 4), torch.tensor([0, 1, 1])),
        *(*WHERE, 2, 0.5, True, True, torch.float32),
    ),
    "pair_score": lambda: (
        leaf(2, 4),
        leaf(2, 4),
        leaf(2, 2),
        leaf(3, 4),
        leaf(2, 4),
        *WHERE,
        0.2,
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_registration_is_sound(name):
    """torch's own checks: schema, fake shapes, autograd, and tracing through AOTAutograd."""
    torch.library.opcheck(getattr(torch.ops.staticgraph, name).default, ARGUMENTS[name]())


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_a_second_derivative_is_refused_by_the_operator_s_own_name(name):
    arguments = ARGUMENTS[name]()
    out = getattr(torch.ops.staticgraph, name).default(*arguments)
    first = next(a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad)
    out = out[0] if isinstance(out, tuple) else out
    (once,) = torch.autograd.grad(out.square().sum(), first, create_graph=True)
    with pytest.raises(RuntimeError, match=f"^staticgraph::{name} has no second derivative"):
        once.sum().backward()
