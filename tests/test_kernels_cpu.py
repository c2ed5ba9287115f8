"""The CPU kernels against their references in float64: results, gradients, edge cases."""

from __future__ import annotations

import pytest
import torch
from support.kernel_oracle import DTYPES, agree

from staticgraph.kernels import (
    batch_norm,
    linear,
    neighbour_sum,
    segment_sum,
    table_sum,
)
from staticgraph.kernels.batch_norm import Running, batch_norm_handed_on, batch_norm_reference
from staticgraph.kernels.head_blocks import (
    nodes_of_blocks,
    nodes_of_blocks_reference,
    qkv_blocks,
    qkv_blocks_reference,
)
from staticgraph.kernels.linear import linear_handed_on, linear_reference
from staticgraph.kernels.segments import segment_sum_reference
from staticgraph.kernels.table_sum import fold_codes, table_sum_reference


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_table_sum(dtype, rows):
    sizes = (4, 9, 2)
    index = torch.stack([torch.randint(size, (rows,)) for size in sizes], 1)
    offsets = torch.tensor([0, 4, 13, 15])
    agree(
        lambda weight: table_sum(index, offsets, weight),
        lambda weight: table_sum_reference(index, offsets, weight),
        [torch.randn(15, 6).to(dtype)],
        terms=rows + 3,
    )
    codes = fold_codes(index, offsets)
    assert torch.equal(torch.cartesian_prod(*map(torch.arange, sizes))[codes], index)


@pytest.mark.parametrize("lookup", [fold_codes, lambda i, o: table_sum(i, o, torch.ones(6, 2))])
@pytest.mark.parametrize("value", [-1, 2])
def test_an_index_outside_its_table_is_named(lookup, value):
    index = torch.tensor([[0, 1], [3, value]])
    with pytest.raises(IndexError, match=f"column 1 has {value} in row 1, but its table has 2"):
        lookup(index, torch.tensor([0, 4, 6]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mean", [False, True])
def test_segment_sum(dtype, mean):
    ptr = torch.tensor([0, 0, 3, 40, 41, 41])
    agree(
        lambda values: segment_sum(values, ptr, mean=mean),
        lambda values: segment_sum_reference(values, ptr, mean),
        [torch.randn(41, 7).to(dtype)],
        terms=38,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(("rows", "real"), [(70, 1), (70, 70), (400, 333)])
def test_batch_norm(dtype, relu, joined, rows, real):
    """With a mean of three standard deviations, a single real row, and more rows than a block."""
    torch.manual_seed(0)
    x = (torch.randn(rows, 6) + 3).to(dtype)
    count = torch.tensor(real)
    tensors = [x, torch.randn(6), torch.randn(6)]
    if joined:
        tensors += [torch.randn(rows, 6).to(dtype), torch.randn(rows, 6).to(dtype)]

    def kernel(x, weight, bias, residual=None, addend=None):
        options = {"eps": 1e-5, "relu": relu, "residual": residual, "addend": addend}
        return batch_norm(x, weight, bias, count, **options)[0]

    def reference(x, weight, bias, residual=None, addend=None):
        if addend is not None:
            x = x + addend
            x = x + (x.to(dtype).double() - x).detach()  # the sum is kept in the input's dtype
        return batch_norm_reference(x, residual, weight, bias, count, 1e-5, relu)[0]

    if dtype == torch.float64:
        tensors = [t.double() for t in tensors]
    agree(kernel, reference, tensors, terms=500)


def test_batch_norm_ignores_what_stands_in_the_padding():
    x, weight, bias, count = torch.randn(50, 4), torch.ones(4), torch.zeros(4), torch.tensor(40)
    other = x.clone()
    other[40:] = 1e6
    results = []
    for value in (x, other):
        value.requires_grad_()
        out, mean, var = batch_norm(value, weight, bias, count, eps=1e-5, relu=True)
        (grad,) = torch.autograd.grad(out.square().sum(), value)
        results.append((out, mean, var, grad))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    assert not results[0][0][40:].any()
    assert not results[0][3][40:].any()


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_torchs(momentum):
    stock = torch.nn.BatchNorm1d(5, momentum=momentum)
    ours = [stock.running_mean.clone(), stock.running_var.clone(), torch.tensor(0)]
    running = Running(*ours, momentum)
    weight, bias = torch.ones(5), torch.zeros(5)
    for rows in (8, 20):
        x = torch.randn(rows + 3, 5)
        stock(x[:rows])
        batch_norm(x, weight, bias, torch.tensor(rows), eps=1e-5, running=running)
        alone = torch.tensor(0)  # a batch of padding alone
        batch_norm(x, weight, bias, alone, eps=1e-5, running=running)
    assert torch.allclose(ours[0], stock.running_mean, atol=1e-6)
    assert torch.allclose(ours[1], stock.running_var, atol=1e-6)
    assert ours[2] == stock.num_batches_tracked


SHAPES = [(2, 4), (1, 3)]


def places() -> tuple[torch.Tensor, torch.Tensor]:
    """Two blocks, for graphs of 4, 0 and 3 nodes, and two padding nodes."""
    place_of_node = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11, 11])
    node_of_place = torch.full((12,), 9)
    node_of_place[place_of_node] = torch.arange(9)
    return node_of_place[:-1].clone(), place_of_node


@pytest.mark.parametrize("dtype", DTYPES)
def test_head_blocks(dtype):
    node_of_place, place_of_node = places()

    def flat(blocks):
        return torch.cat([part.flatten() for block in blocks for part in block])

    agree(
        lambda rows: flat(qkv_blocks(rows, node_of_place, place_of_node, SHAPES, 2)),
        lambda rows: flat(qkv_blocks_reference(rows, node_of_place, SHAPES, 2)),
        [torch.randn(9, 30).to(dtype)],
        terms=1,
    )
    agree(
        lambda *blocks: nodes_of_blocks(blocks, place_of_node, node_of_place),
        lambda *blocks: nodes_of_blocks_reference(blocks, place_of_node),
        [torch.randn(2, 2, 4, 5).to(dtype), torch.randn(1, 2, 3, 5).to(dtype)],
        terms=1,
    )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("width", "out"), [(7, 5), (5, 7)])
def test_linear(relu, bias, width, out):
    tensors = [torch.randn(90, width), torch.randn(out, width), torch.randn(out)]

    def kernel(x, weight, bias=None):
        return linear(x, weight, bias, relu=relu)

    def reference(x, weight, bias=None):
        return linear_reference(x, weight, bias, relu)

    agree(kernel, reference, tensors[: 3 if bias else 2], terms=90)


ARGUMENTS = {
    "dropout_sum": lambda: (*torch.randn(3, 9, 4), torch.tensor([3]), 2, 0.5),
    "head_blocks": lambda: (torch.randn(9, 30), places()[0], [2, 1], [4, 3], 2, 3),
    "head_rows": lambda: (
        [torch.randn(2, 2, 4, 5), torch.randn(1, 2, 3, 5)],
        *places()[::-1],
        1,
    ),
    "table_sum": lambda: (
        torch.randint(3, (9, 1)),
        torch.tensor([0, 3]),
        torch.randn(3, 4),
    ),
    "segment_sum": lambda: (torch.randn(9, 4), torch.tensor([0, 4, 9]), True),
    "batch_norm": lambda: (
        *torch.randn(3, 9, 4),
        torch.ones(4),
        torch.zeros(4),
        torch.tensor(7),
        torch.zeros(4),
        torch.ones(4),
        torch.tensor(0),
        0.1,
        1e-5,
        True,
        None,
    ),
    "linear_statistics": lambda: (
        *torch.randn(2, 9, 4),
        None,
        torch.tensor(7),
        True,
        torch.bfloat16,
    ),
    "neighbour_sum": lambda: (
        torch.randn(2, 4),
        torch.randn(3, 4),
        None,
        torch.tensor([1, 0, 1]),
        torch.tensor([0, 1, 1]),
        torch.tensor([0, 1, 3]).int(),
        torch.tensor([0, 1, 3]).int(),
        torch.tensor([1, 0, 2]).int(),
        torch.tensor([0.5]),
        torch.randn(3),
        "relu_add",
        False,
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_registration_is_sound(name):
    """torch's own checks: schema, fake shapes, autograd, and tracing through AOTAutograd."""
    torch.library.opcheck(getattr(torch.ops.staticgraph, name).default, ARGUMENTS[name]())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_norms_addend_handed_on(dtype):
    """Later readers of the addend send their gradient through the norm; also if there is no such
    reader, and if nothing reads the norm."""
    count = torch.tensor(35)

    def kernel(x, addend, weight, bias):
        out, again = batch_norm_handed_on(x, addend, weight, bias, count, eps=1e-5)
        return out + again.square() + batch_norm_handed_on(again, x, weight, bias, count, eps=1)[0]

    def reference(x, addend, weight, bias):
        first, second = (
            batch_norm_reference(x + addend, None, weight, bias, count, eps, False)[0]
            for eps in (1e-5, 1)
        )
        return first + addend.square() + second

    shapes = (40, 5), (40, 5), (5,), (5,)
    agree(kernel, reference, [torch.randn(shape).to(dtype) for shape in shapes], terms=200)
    x, addend = torch.randn(2, 40, 5, requires_grad=True)
    _, again = batch_norm_handed_on(x, addend, torch.ones(5), torch.zeros(5), count, eps=1e-5)
    (found,) = torch.autograd.grad(again.sum(), addend)
    assert torch.equal(found, torch.ones(40, 5))


def test_a_linear_layers_input_handed_on():
    def kernel(x, weight, bias):
        out, x = linear_handed_on(x, weight, bias, relu=True)
        return torch.cat([out, x.square()], 1)

    def reference(x, weight, bias):
        return torch.cat([linear_reference(x, weight, bias, True), x.square()], 1)

    agree(kernel, reference, [torch.randn(90, 7), torch.randn(5, 7), torch.randn(5)], terms=90)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operands_with_gaps_or_of_other_dtypes_are_read_as_what_they_are(dtype):
    """A kernel that takes addresses does not see strides."""
    wide = torch.promote_types(dtype, torch.float32)
    weight, bias = torch.randn(6, 2, dtype=dtype).unbind(1)
    moved = Running(
        torch.zeros(6, 2, dtype=dtype)[:, 0],
        torch.ones(6, 2, dtype=torch.float64)[:, 1],
        torch.tensor(3, dtype=torch.int32),
        None,
    )
    plain = Running(torch.zeros(6, dtype=wide), torch.ones(6, dtype=wide), torch.tensor(3), None)
    x, count = torch.randn(9, 6).to(dtype), torch.tensor(7)
    given = {"eps": 1e-5, "relu": True}
    found, mean, var = batch_norm(x, weight, bias, count, running=moved, **given)
    expected = batch_norm(x, weight.clone(), bias.clone(), count, running=plain, **given)
    assert torch.equal(found, expected[0])
    assert torch.equal(mean, expected[1])
    assert torch.equal(var, expected[2])
    assert int(moved.tracked) == int(plain.tracked) == 4
    torch.testing.assert_close(moved.mean, plain.mean.to(dtype))
    torch.testing.assert_close(moved.var, plain.var.to(torch.float64))

    src, dst = torch.tensor([[1, 0], [0, 1], [2, 2]]).unbind(1)
    pointers = [torch.tensor(p).int() for p in ([0, 1, 2, 3], [0, 1, 2, 3], [1, 0, 2])]
    for kind, table in (("multiply", torch.randn(3, 2)[:, 0]), ("relu_add", torch.randn(6, 3).t())):
        edge, rows = table.to(dtype), torch.randn(3, 12).to(dtype)[:, ::2]
        sums = [
            neighbour_sum(*given, src, dst, *pointers, transform=kind)
            for given in ((rows, edge), (rows.clone(), edge.clone()))
        ]
        assert torch.equal(*sums)
