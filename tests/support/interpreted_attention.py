"""The Triton kernel of attention, run by Triton's interpreter on the CPU, against its reference.

Started by test_kernels_triton.py in a separate process, like interpreted_kernels.py. The bound for
float32 is the one used there, with the terms of the longest sums, keys and columns. In bfloat16,
weights and their gradients are rounded before they are multiplied, as in torch: the kernel may be
twice as far from float64 as the reference in bfloat16.
"""

from __future__ import annotations

import os

import pytest
import torch

assert os.environ.get("TRITON_INTERPRET") == "1"

from staticgraph.kernels.graph_attention import gpu, graph_attention_reference  # noqa: E402
from staticgraph.sizes.attention import kernel_tile  # noqa: E402
from support.interpreted_oracle import DTYPES, close, exact  # noqa: E402
from support.sampled import in_turn  # noqa: E402

PADDING = 9
# Graphs of one tile and of several, of exactly one tile, of one node, and empty graphs, also at the
# end; then molecules of one small tile.
SEVERAL = ([5, 0, 17, 40, 32, 1, 0, 0], 40)
SMALL = ([5, 12, 0], 12)


def batch(sizes, heads, size, dtype):
    """Returns rows, gradients and starts; the padding is NaN, since no kernel may read it."""
    torch.manual_seed(0)
    ends = torch.tensor([0, *sizes]).cumsum(0)
    nodes = int(ends[-1]) + PADDING
    rows, grad = torch.randn(nodes, 3 * heads * size).to(dtype), torch.randn(nodes, heads * size)
    rows[-PADDING:] = torch.nan
    return rows, grad.to(dtype), ends.int()


def both_ways(rows, grad, starts, heads, longest, seed=None, p=0.0):
    out, lse = gpu.forward(rows, starts, seed, heads, longest, 4, p)
    return out, gpu.backward(grad, rows, out, lse, starts, seed, heads, longest, 4, p)


def within(found, expected, eager, terms) -> bool:
    if found.dtype == torch.float32:
        return close(found, expected, terms)
    scale = torch.finfo(found.dtype).eps * expected.abs().max().item()
    usual = (eager.double() - expected).abs().max().item()
    return (found.double() - expected).abs().max().item() <= 2 * max(scale, usual)


def check(rows, grad, starts, heads, found, longest, kept=None, p=0.0):
    """Compares with float64 from the same rounded inputs; padding must be zero in both passes."""
    real = int(starts[-1])
    clean = torch.where(torch.arange(len(rows))[:, None] < real, rows, 0)
    given = (starts, heads, kept, p)
    expected, (gradient,) = exact(graph_attention_reference, [clean], grad, *given)
    own = clean.clone().requires_grad_()
    eager = graph_attention_reference(own, *given).to(rows.dtype)
    (usual,) = torch.autograd.grad(eager, own, grad)
    terms = longest + rows.size(1) // (3 * heads)
    assert within(found[0], expected, eager, terms)
    assert within(found[1], gradient, usual, 2 * terms)  # two of the sums in a row
    assert not found[0][real:].any()
    assert not found[1][real:].any()


GRAPHS = [(*sizes, *heads) for sizes in (SEVERAL, SMALL) for heads in ((2, 10), (1, 72))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sizes", "longest", "heads", "size", "dtype"), in_turn(GRAPHS, DTYPES))
def test_equals_the_reference(dtype, sizes, longest, heads, size):
    rows, grad, starts = batch(sizes, heads, size, dtype)
    found = both_ways(rows, grad, starts, heads, longest)
    check(rows, grad, starts, heads, found, longest)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_is_the_same_both_ways(dtype):
    """Values with one column per key show which weights are kept; their share must be right."""
    sizes, longest, heads, size, p = [5, 0, 40, 1, 0], 40, 2, 10, 0.25
    rows, grad, starts = batch(sizes, heads, size, dtype)
    nodes, seed = len(rows), torch.tensor([3])
    columns = 65
    shown = torch.zeros(nodes, 3, heads, columns)
    shown[:, 2] = torch.eye(nodes, columns)[:, None]
    assert kernel_tile(longest, columns) != kernel_tile(longest, size), "other tiles, same fate"

    def kept(site, seed):
        out, _ = gpu.forward(shown.flatten(1), starts, seed, heads, longest, site, p)
        return out.view(nodes, heads, columns).transpose(0, 1)[:, :, :nodes] > 0

    found = both_ways(rows, grad, starts, heads, longest, seed, p)
    stays = kept(4, seed)
    check(rows, grad, starts, heads, found, longest, stays, p)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    pairs = (owner[:, None] == owner).expand(heads, -1, -1)
    alive = stays[:, : len(owner), : len(owner)]
    count = int(pairs.sum())
    assert not alive[~pairs].any()
    assert abs(alive[pairs].double().mean() - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    assert abs((alive[0] == alive[1])[pairs[0]].double().mean() - 0.625) < 0.05, "heads"
    for other in (kept(5, seed), kept(4, torch.tensor([4]))):
        assert not torch.equal(alive, other[:, : len(owner), : len(owner)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES[::-1])
def test_a_graph_is_the_same_bits_whatever_stands_beside_it(dtype):
    """Compares a graph alone with one among others in another bucket, forward and backward."""
    sizes, longest = SEVERAL
    rows, grad, starts = batch(sizes, 2, 10, dtype)
    together = both_ways(rows, grad, starts, 2, longest)
    own = slice(22, 62)
    alone = both_ways(rows[own], grad[own], torch.tensor([0, 40, 40]).int(), 2, 70)
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one[own], other)


def test_a_batch_of_padding_alone_is_zero():
    rows, grad, _ = batch([3], 2, 10, torch.float32)
    starts = torch.zeros(4, dtype=torch.int32)
    for found in both_ways(rows, grad, starts, 2, 70):
        assert not found.any()
