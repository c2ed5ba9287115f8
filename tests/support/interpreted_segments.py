"""The Triton kernels for max, softmax and attention, run by Triton's interpreter on the CPU.

Started by test_kernels_triton.py in a separate process, like interpreted_kernels.py, whose bounds
apply here, too.
"""

from __future__ import annotations

import os

import pytest
import torch

assert os.environ.get("TRITON_INTERPRET") == "1"

from staticgraph.kernels.dot_attention import dot_attention_reference  # noqa: E402
from staticgraph.kernels.dot_attention import gpu as dots  # noqa: E402
from staticgraph.kernels.edge_rows import edge_rows_reference  # noqa: E402
from staticgraph.kernels.edge_rows import gpu as rows_of_edges  # noqa: E402
from staticgraph.kernels.gcn_sum import gcn_degrees_reference, gcn_sum_reference  # noqa: E402
from staticgraph.kernels.gcn_sum import gpu as gcn  # noqa: E402
from staticgraph.kernels.neighbour_attention import gpu as attention  # noqa: E402
from staticgraph.kernels.neighbour_attention import neighbour_attention_reference  # noqa: E402
from staticgraph.kernels.neighbour_max import gpu as largest  # noqa: E402
from staticgraph.kernels.neighbour_max import neighbour_max_reference  # noqa: E402
from staticgraph.kernels.pair_score import gpu as pairs  # noqa: E402
from staticgraph.kernels.pair_score import pair_score_reference  # noqa: E402
from staticgraph.kernels.segments import gpu as segments  # noqa: E402
from staticgraph.kernels.segments import (  # noqa: E402
    segment_max_reference,
    segment_softmax_reference,
)
from support.interpreted_oracle import DTYPES, close, exact, graph  # noqa: E402
from support.sampled import in_turn  # noqa: E402

PTR = torch.tensor([0, 3, 3, 40, 41])
# The interpreter's time grows with rows and edges; some nodes have no edge, some have many.
NODES, EDGES = 7, 16


def test_the_graph_has_nodes_without_an_edge_and_with_several():
    _, _, row_ptr, col_ptr, _ = graph(NODES, EDGES)
    for pointers in (row_ptr, col_ptr):
        assert pointers.diff().min() == 0
        assert pointers.diff().max() > 4


def steps(*shape: int) -> torch.Tensor:
    """Returns numbers from few distinct values, so that many are equal."""
    return torch.randint(-3, 3, shape) / 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_segment_max(dtype):
    torch.manual_seed(0)
    values, grad = steps(41, 20).to(dtype), torch.randn(4, 20).to(dtype)
    expected, (gradient,) = exact(lambda v: segment_max_reference(v, PTR), [values], grad)
    out = segments.max_forward(values, PTR)
    assert torch.equal(out.double(), expected)
    assert close(segments.max_backward(grad, values, out, PTR), gradient, 2)
    values[1, 2] = float("nan")
    assert segments.max_forward(values, PTR)[0, 2].isnan()


@pytest.mark.parametrize("dtype", DTYPES)
def test_segment_softmax(dtype):
    torch.manual_seed(0)
    values, grad = torch.randn(41, 20).to(dtype), torch.randn(41, 20).to(dtype)
    values[5] += 200
    expected, (gradient,) = exact(lambda v: segment_softmax_reference(v, PTR), [values], grad)
    out = segments.softmax_forward(values, PTR)
    assert close(out, expected, 37)
    assert close(segments.softmax_backward(grad, out, PTR), gradient, 37)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("edged", "dtype"), in_turn([False, True], DTYPES))
def test_neighbour_max(dtype, edged):
    torch.manual_seed(0)
    src, dst, row_ptr, col_ptr, transpose = graph(NODES, EDGES)
    x, grad = steps(NODES, 20).to(dtype), torch.randn(NODES, 20).to(dtype)
    edge = steps(EDGES, 20).to(dtype) if edged else None
    expected, gradients = exact(neighbour_max_reference, [x, edge], grad, src, dst)
    out = largest.forward(x, edge, src, row_ptr)
    assert close(out, expected, 1)
    dx, dedge = largest.backward(grad, x, edge, out, src, dst, row_ptr, col_ptr, transpose)
    assert close(dx, gradients[0], 12)
    if edge is not None:
        assert close(dedge, gradients[1], 2)


GCNS = [(True, True), (False, False), (True, False), (False, True)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("weighted", "loops", "dtype"), in_turn(GCNS, DTYPES))
def test_gcn_sum(dtype, weighted, loops):
    torch.manual_seed(0)
    src, dst, row_ptr, col_ptr, transpose = graph(NODES, EDGES)
    x, grad = torch.randn(NODES, 20).to(dtype), torch.randn(NODES, 20).to(dtype)
    weight = torch.rand(EDGES).to(dtype) if weighted else None
    bias = torch.randn(20).to(dtype) if weighted else None
    root, own = gcn.degrees(src, row_ptr, weight, 2.0, loops, x)
    wide_root, wide_own = gcn_degrees_reference(src, dst, NODES, weight, 2.0, loops)
    assert close(root, wide_root, 12)
    assert close(own, wide_own, 1)
    wide_weight = None if weight is None else weight.double()
    expected, gradients = exact(
        gcn_sum_reference, [x, bias], grad, wide_root, wide_own, wide_weight, src, dst, loops
    )
    out = gcn.forward(x, bias, root, own, weight, src, row_ptr, loops, dtype)
    assert close(out, expected, 24)
    dx = gcn.backward(grad, root, own, weight, dst, col_ptr, transpose, loops, dtype)
    assert close(dx, gradients[0], 24)
    given = x.double(), None, wide_root, wide_own, wide_weight
    _, gradients = exact(
        lambda root, own, weight: gcn_sum_reference(*given[:2], root, own, weight, src, dst, loops),
        list(given[2:]),
        grad,
    )
    where = src, dst, row_ptr, col_ptr, transpose
    found = gcn.weights_backward(grad, x, root, own, weight, *where, loops)
    for ours, theirs in zip(found if weighted else found[:2], gradients, strict=False):
        assert close(ours, theirs, 60)


@pytest.mark.parametrize("loops", [False, True])
def test_gcn_degrees(loops):
    torch.manual_seed(0)
    src, dst, row_ptr, _, _ = graph(NODES, EDGES)
    weight, droot, down = torch.rand(EDGES) + 0.5, torch.randn(NODES), torch.randn(NODES)
    root, _ = gcn.degrees(src, row_ptr, weight, 2.0, loops, weight)

    def both(weight):
        root, own = gcn_degrees_reference(src, dst, NODES, weight, 2.0, loops)
        return torch.cat([root, own])

    _, (expected,) = exact(both, [weight], torch.cat([droot, down]))
    assert close(gcn.degrees_backward(droot, down, root, src, row_ptr, loops), expected, 12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("operands", "loops", "dtype", "heads", "width"),
    [
        ("pair", True, torch.float32, 1, 20),
        ("pair", False, torch.float32, 3, 5),
        ("edge", False, torch.float32, 1, 20),
        ("edge", True, torch.float32, 3, 5),
        ("edge own", True, torch.float32, 3, 5),
        ("pair edge", False, torch.float32, 1, 20),
        ("pair edge", False, torch.bfloat16, 3, 5),
        ("pair edge own", True, torch.float32, 3, 5),
        ("pair edge own", True, torch.bfloat16, 1, 20),
    ],
)
def test_neighbour_attention(operands, loops, dtype, heads, width):
    """A narrow dtype changes the load of each operand, so one case has all operands at once."""
    torch.manual_seed(0)
    src, dst, row_ptr, col_ptr, transpose = graph(NODES, EDGES)
    x, grad = torch.randn(NODES, heads * width).to(dtype), torch.randn(NODES, heads * width)
    pair = torch.randn(heads, NODES, 2).to(dtype) if "pair" in operands else None
    edge = torch.randn(EDGES, heads).to(dtype) if "edge" in operands else None
    own = torch.randn(NODES, heads).to(dtype) if "own" in operands else None
    grad = grad.to(dtype)
    given = [x, pair, edge, own]
    expected, gradients = exact(
        neighbour_attention_reference, given, grad, src, dst, heads, 0.2, loops
    )
    out, share, own_share = attention.forward(
        x, pair, edge, own, src, row_ptr, heads, 0.2, loops, dtype
    )
    assert close(out, expected, 64)
    found = attention.backward(
        grad,
        x,
        out,
        share,
        own_share,
        pair,
        edge,
        own,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        heads,
        0.2,
        loops,
    )
    # The gradient of a score starts from the rounded result, with one rounding per column.
    terms = 64 if dtype == torch.float32 else 2**16 * (2 + width)
    found = [value for value, one in zip(found, given, strict=True) if one is not None]
    for value, gradient in zip(found, gradients, strict=True):
        assert close(value, gradient, terms)


@pytest.mark.parametrize(
    ("dtype", "more", "heads", "width"),
    [
        (torch.float32, False, 1, 20),
        (torch.float32, True, 3, 5),
        (torch.bfloat16, False, 3, 5),
        (torch.bfloat16, True, 1, 20),
    ],
)
def test_pair_score(dtype, more, heads, width):
    torch.manual_seed(0)
    src, dst, row_ptr, col_ptr, transpose = graph(NODES, EDGES)
    shapes = [(NODES, heads * width), (NODES, heads * width), (heads, width)]
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    given += [
        torch.randn(rows, heads * width).to(dtype) if more else None for rows in (EDGES, NODES)
    ]
    grads = torch.randn(EDGES, heads).to(dtype), torch.randn(NODES, heads).to(dtype)

    def reference(*tensors):
        return torch.cat(pair_score_reference(*tensors[:3], *given_or(tensors), src, dst, 0.2))

    def given_or(tensors):
        return tensors[3:] if more else (None, None)

    expected, gradients = exact(reference, given, torch.cat(grads))
    out = pairs.forward(*given, src, row_ptr, 0.2)
    assert close(torch.cat(out), expected, width)
    found = pairs.backward(*grads, *given, src, dst, row_ptr, col_ptr, transpose, 0.2)
    found = [value for value, one in zip(found, given, strict=True) if one is not None]
    for value, gradient in zip(found, gradients, strict=True):
        assert close(value, gradient, EDGES + NODES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("edges", "heads", "width", "columns", "dtype"),
    [
        *((edges, 1, 20, 20, torch.float32) for edges in ("key", "value", "table")),
        *((edges, 3, 5, 5, torch.float32) for edges in ("none", "both")),
        *((edges, 3, 5, 2, torch.float32) for edges in ("key", "value")),
        *((edges, 3, 5, 5, torch.bfloat16) for edges in ("table", "both")),
        *((edges, 3, 5, 2, torch.bfloat16) for edges in ("none", "key", "value")),
    ],
)
def test_dot_attention(edges, heads, width, columns, dtype):
    """Values have fewer columns than keys if an edge's row is added to only one of the two."""
    torch.manual_seed(0)
    src, dst, row_ptr, col_ptr, transpose = graph(NODES, EDGES)
    to_key, to_value = edges in ("key", "both", "table"), edges in ("value", "both", "table")
    query, key = (torch.randn(NODES, heads * width).to(dtype) for _ in range(2))
    value, grad = (torch.randn(NODES, heads * columns).to(dtype) for _ in range(2))
    code = torch.arange(EDGES) % 3 if edges == "table" else None
    rows = heads * (width if to_key else columns)
    edge = torch.randn(EDGES if code is None else 3, rows).to(dtype) if edges != "none" else None
    given, options = [query, key, value, edge], (heads, 0.4, to_key, to_value)
    expected, gradients = exact(dot_attention_reference, given, grad, code, src, dst, *options)
    out, share = dots.forward(*given, code, src, row_ptr, *options, dtype)
    assert close(out, expected, 64)
    pointers = src, dst, row_ptr, col_ptr, transpose
    found = dots.backward(grad, out, share, *given, code, *pointers, *options)
    # The gradient of a score starts from the rounded result, with one rounding per column.
    terms = 64 if dtype == torch.float32 else 2**16 * (2 + columns)
    found = [one for one, asked in zip(found, given, strict=True) if asked is not None]
    for one, gradient in zip(found, gradients, strict=True):
        assert close(one, gradient, terms)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("coded", "dtype"), in_turn([False, True], DTYPES))
def test_edge_rows(dtype, coded):
    torch.manual_seed(0)
    src, dst, row_ptr, col_ptr, transpose = graph(NODES, EDGES)
    code = torch.arange(EDGES) % 3 if coded else None
    parts = [torch.randn(n, 20).to(dtype) for n in (NODES, NODES, 3 if coded else EDGES)]
    grad = torch.randn(EDGES, 20).to(dtype)
    expected, gradients = exact(
        lambda *given: edge_rows_reference(*given, code, src, dst), parts, grad
    )
    assert close(rows_of_edges.forward(*parts, code, src, dst), expected, 3)
    pointers = row_ptr, col_ptr, transpose
    found = rows_of_edges.backward(grad, code, *pointers, 3, (True, True, True))
    if not coded:
        assert not found[2].numel()
        found = *found[:2], grad
    for ours, right in zip(found, gradients, strict=True):
        assert close(ours, right, EDGES)
