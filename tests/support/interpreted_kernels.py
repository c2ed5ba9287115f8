"""The Triton kernels, run by Triton's interpreter on the CPU, against the references.

Started by test_kernels_triton.py in a separate process, since ``TRITON_INTERPRET`` must be set
before Triton is imported. A kernel's error is bounded by the precision of its dtype: a few units in
the last place of the largest summed value, times the terms of the longest sum; if the result itself
is bfloat16, one rounding of it.
"""

from __future__ import annotations

import os

import pytest
import torch

from support.interpreted_oracle import DTYPES, close, exact, graph
from support.sampled import in_turn

assert os.environ.get("TRITON_INTERPRET") == "1"

from staticgraph.kernels.batch_norm import batch_norm_reference, partials  # noqa: E402
from staticgraph.kernels.batch_norm import gpu as norm  # noqa: E402
from staticgraph.kernels.batch_norm import small as small_norm  # noqa: E402
from staticgraph.kernels.linear import small as small_dense  # noqa: E402
from staticgraph.kernels.linear_statistics import gpu as measured  # noqa: E402
from staticgraph.kernels.neighbour_sum import gpu as neighbour  # noqa: E402
from staticgraph.kernels.neighbour_sum import neighbour_sum_reference  # noqa: E402
from staticgraph.kernels.segments import gpu as segments  # noqa: E402
from staticgraph.kernels.segments import segment_sum_reference  # noqa: E402
from staticgraph.kernels.table_sum import gpu as table  # noqa: E402
from staticgraph.kernels.table_sum import table_sum_reference  # noqa: E402

# More edges than a block of rows that share a table; nodes without incoming or outgoing edges.
NODES, EDGES = 14, 34


OPERANDS = [
    ("copy", None),
    ("multiply", "scalar"),
    ("multiply", "edge"),
    ("relu_add", "edge"),
    ("relu_add", "table"),
    ("multiply", "table"),
    ("relu_add", "each"),
    ("relu_add", "weighed"),
    ("relu_add", "weighed table"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [20])
@pytest.mark.parametrize(
    ("transform", "operand", "mean", "dtype"),
    in_turn(OPERANDS, [(False, torch.float32), (True, torch.bfloat16)]),
)
def test_neighbour_sum(mean, dtype, width, transform, operand):
    torch.manual_seed(0)
    src, dst, row_ptr, col_ptr, transpose = graph(NODES, EDGES)
    x = torch.randn(NODES, width).to(dtype)
    shape = {"scalar": (EDGES,), None: None}.get(operand, (7, width))
    if operand in ("edge", "weighed"):
        shape = EDGES, width
    edge = None if shape is None else torch.randn(shape).to(dtype)
    each = operand == "each"
    code = torch.randint(7, (EDGES,)) if operand in ("table", "weighed table", "each") else None
    weight = torch.rand(EDGES).to(dtype) if "weighed" in str(operand) else None
    eps = torch.tensor([0.5]) if mean else None
    grad = torch.randn(NODES, width).to(dtype)
    out = neighbour.forward(x, edge, code, src, row_ptr, eps, weight, transform, mean)
    # Gradients from other uses of operands that are handed on; they are added at the end.
    kept = torch.zeros(EDGES, width) if each else edge
    into = [torch.randn_like(t) if mean and t is not None else None for t in (x, kept)]
    pointers = row_ptr, col_ptr, transpose
    dx, dedge = neighbour.backward(
        grad, x, edge, code, dst, *pointers, eps, weight, *into, transform, mean, each
    )
    if each:
        assert dedge.dtype == torch.float32
        dedge = torch.zeros(7, width).index_add(0, code, dedge)
        into[1] = None if into[1] is None else torch.zeros(7, width).index_add(0, code, into[1])
    expected, gradients = exact(
        neighbour_sum_reference, [x, edge], grad, code, src, dst, eps, transform, mean, weight
    )
    gradients = [g if i is None else g + i for g, i in zip(gradients, into, strict=False)]
    assert close(out, expected, 12)
    assert close(dx, gradients[0], 12)
    if edge is not None:
        assert dedge.shape == edge.shape
        assert close(dedge, gradients[1], max(width, EDGES))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rows", "width", "dtype"), in_turn([(70, 70), (3, 5)], DTYPES))
def test_table_sum(dtype, rows, width):
    torch.manual_seed(0)
    sizes = (5, 70, 2)
    index = torch.stack([torch.randint(size, (rows,)) for size in sizes], 1)
    offsets = torch.tensor([0, 5, 75, 77])
    weight, grad = torch.randn(77, width).to(dtype), torch.randn(rows, width).to(dtype)
    expected, (gradient,) = exact(lambda w: table_sum_reference(index, offsets, w), [weight], grad)
    assert close(table.forward(index, offsets, weight), expected, 3)
    assert close(table.backward(grad, index, offsets, 77), gradient, rows)
    codes = table.codes(index, offsets)
    assert torch.equal(torch.cartesian_prod(*map(torch.arange, sizes))[codes], index)


def test_counts_on_the_matrix_unit_lose_nothing():
    """One row per entry: the gradient must be exact to the last bit of float32.

    The magnitudes do not fit into one bfloat16 together.
    """
    torch.manual_seed(0)
    grad = torch.randn(70, 20) * 10.0 ** torch.randint(-6, 7, (70, 20))
    index = torch.randperm(70)[:, None]
    found = table.backward(grad, index, torch.tensor([0, 70]), 70)
    assert torch.equal(found[index[:, 0]], grad)


def test_an_index_outside_its_table_shows():
    out = table.forward(torch.tensor([[0, 1], [0, 2]]), torch.tensor([0, 1, 3]), torch.ones(3, 4))
    assert torch.isfinite(out[0]).all()
    assert torch.isnan(out[1]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [False, True])
def test_segment_sum(dtype, mean):
    torch.manual_seed(0)
    ptr = torch.tensor([0, 3, 3, 40, 41])
    values, grad = torch.randn(41, 20).to(dtype), torch.randn(4, 20).to(dtype)
    expected, (gradient,) = exact(lambda v: segment_sum_reference(v, ptr, mean), [values], grad)
    assert close(segments.sum_forward(values, ptr, mean), expected, 37)
    assert close(segments.sum_backward(grad, ptr, 41, mean), gradient, 1)


NORMS = [(norm, 90, 77), (norm, 300, 270), (norm, 40, 0)]
NORMS += [(small_norm, 90, 77), (small_norm, 1024, 1000), (small_norm, 40, 0)]
USES = [
    (False, True, torch.float32),
    (True, False, torch.float32),
    (True, True, torch.bfloat16),
    (False, False, torch.bfloat16),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("norm", "rows", "real", "relu", "joined", "dtype"), in_turn(NORMS, USES))
def test_batch_norm(relu, joined, dtype, norm, rows, real, monkeypatch):
    """300 rows make four chunks of three blocks, the last without a real row; the mean is large.

    Inputs of few rows take two launches or one.
    """
    if rows == 300:
        monkeypatch.setattr(norm, "MAX_PARTIALS", 4)
        assert norm._chunks(torch.empty(rows, 20))[:2] == (4, 96)
    torch.manual_seed(0)
    x = (torch.randn(rows, 20) + 3).to(dtype)
    residual = torch.randn(rows, 20).to(dtype) if joined else None
    weight, bias, grad = torch.randn(20), torch.randn(20), torch.randn(rows, 20).to(dtype)
    count = torch.tensor(real)
    addend = torch.randn(rows, 20).to(dtype) if joined else None
    out, mean, var, total = norm.forward(
        x, addend, residual, weight, bias, count, *(None,) * 4, 1e-5, relu
    )
    if addend is not None:  # from here on, x is the sum that is normalised
        assert not real or close(total[:real], (x.double() + addend)[:real], 1)
        total[real:] = x[real:]
        x = total
    dx, dweight, dbias, both = norm.backward(
        grad, x, weight, bias, mean, var, count, residual, 1e-5, relu
    )
    if joined:  # another gradient of the addend
        assert both.dtype == dtype
        assert close(both, dx.double() + residual.double(), 2)
    expected, gradients = exact(
        batch_norm_reference, [x, residual, weight, bias], grad, count, 1e-5, relu
    )
    assert close(out, expected, 64)
    if not real:
        assert not dx.any()
        return
    values = x[:real].double()
    assert close(mean, values.mean(0), 64)
    assert close(var, values.var(0, unbiased=False), 64)
    # A value within rounding of zero may be on the other side of ReLU: its column is left out.
    at_zero = (expected if residual is None else expected - residual.double()).abs() < 1e-4
    sure = ~(at_zero[:real] & (expected[:real] != 0)).any(0) if relu else torch.ones(20).bool()
    for found, gradient in zip((dx, dweight, dbias), (gradients[0], *gradients[-2:]), strict=True):
        assert close(found[..., sure], gradient[..., sure], 64)


def test_partial_statistics_of_a_full_grid_join_without_loss():
    """All 64 chunks, the last without real rows, and a mean of a thousand times the spread."""
    torch.manual_seed(0)
    rows, real = 2048 * 2, 3300
    x = torch.randn(rows, 4) + 1000
    weight, bias, count = torch.ones(4), torch.zeros(4), torch.tensor(real)
    x[real:] = torch.nan
    out, mean, var, _ = norm.forward(x, None, None, weight, bias, count, *(None,) * 4, 1e-5, False)
    wide = x[:real].double()
    assert close(mean, wide.mean(0), 64)
    # Deviations have the rounding error of the values, which are a thousand times as large.
    eps = torch.finfo(torch.float32).eps
    assert ((var - wide.var(0, unbiased=False)).abs() <= 1000 * eps * 4).all()
    assert not out[real:].any()


@pytest.mark.parametrize(("norm", "momentum"), [(norm, 0.1), (norm, None), (small_norm, 0.1)])
def test_running_statistics(norm, momentum):
    """They are updated in the norm's own launches; 70 columns make two programs per chunk."""
    torch.manual_seed(0)
    stock = torch.nn.BatchNorm1d(70, momentum=momentum)
    ours = [stock.running_mean.clone(), stock.running_var.clone(), torch.tensor(0)]
    weight, bias = torch.ones(70), torch.zeros(70)
    for rows in (9, 30):
        x = torch.randn(rows + 2, 70)
        stock(x[:rows])
        for count in (rows, 1, 0):  # then a single row, and a batch of padding only
            norm.forward(
                x, None, None, weight, bias, torch.tensor(count), *ours, momentum, 1e-5, False
            )
    assert torch.allclose(ours[0], stock.running_mean, atol=1e-6)
    assert torch.allclose(ours[1], stock.running_var, atol=1e-6)
    assert int(ours[2]) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("tile", "real", "relu"),
    [(32, 133, True), (32, 133, False), (128, 133, False), (64, 133, True)]
    + [(32, 0, True), (64, 1, False)],
)
def test_statistics_from_the_products_epilogue(tile, real, relu, monkeypatch):
    """The bits of the plain product, and the statistics of the norm; NaN padding has no effect.

    Tiles of 32 rows equal the norm's own chunks to the last bit.
    """
    monkeypatch.setattr(partials, "TILES", (tile,))
    torch.manual_seed(0)
    x, weight, bias = torch.randn(170, 33), torch.randn(70, 33), torch.randn(70) + 3
    residual, scale, shift = torch.randn(170, 70), torch.randn(70), torch.randn(70)
    x[real:], count = torch.nan, torch.tensor(real)
    out, partial = measured.forward(x, weight, bias, count, relu, torch.bfloat16)
    plain = small_dense.forward(x, weight, bias, relu, torch.bfloat16)
    assert torch.equal(out.nan_to_num(7), plain.nan_to_num(7))
    expected = partials.partials_reference(out, count)
    assert partial.shape == expected.shape == (-(-170 // tile), 2, 70)
    known = partial[: -(-real // tile)]
    assert torch.allclose(known, expected[: len(known)], rtol=1e-5, atol=1e-5)
    found = []
    for given in (partial, None):
        kept = [torch.zeros(70), torch.ones(70), torch.tensor(4)]
        one = norm.forward(out, None, residual, scale, shift, count, *kept, 0.1, 1e-5, False, given)
        found.append([*one[:3], *kept])
    for ours, theirs in zip(*found, strict=True):
        assert torch.isfinite(ours).all()
        assert torch.equal(ours, theirs) if tile == 32 else torch.allclose(ours, theirs, atol=1e-5)
    assert int(kept[2]) == 4 + (real > 1)


def test_neighbour_sum_of_mixed_precision():
    """Nodes in bfloat16, edges in float32: the sum is float32, each gradient has its operand's."""
    torch.manual_seed(0)
    src, dst, row_ptr, col_ptr, transpose = graph(NODES, EDGES)
    x, edge = torch.randn(NODES, 20).bfloat16(), torch.randn(EDGES, 20)
    grad = torch.randn(NODES, 20)
    out = neighbour.forward(x, edge, None, src, row_ptr, None, None, "relu_add", False)
    pointers = (dst, row_ptr, col_ptr, transpose)
    found = neighbour.backward(
        grad, x, edge, None, *pointers, None, None, x, None, "relu_add", False, False
    )
    expected, gradients = exact(
        neighbour_sum_reference, [x, edge], grad, None, src, dst, None, "relu_add", False
    )
    assert [t.dtype for t in (out, *found)] == [torch.float32, torch.bfloat16, torch.float32]
    assert close(out, expected, 12)
    assert close(found[0], gradients[0] + x, 12)
    assert close(found[1], gradients[1], 12)
