"""Attention among the nodes of each graph as one operator: on the CPU, and compiled for sm_90."""

from __future__ import annotations

import pytest
import torch
from support.attending import assert_drops_its_share
from support.compiled import launches

from staticgraph.kernels.graph_attention import (
    cpu,
    draw_mask,
    graph_attention,
    graph_attention_reference,
)
from staticgraph.kernels.register import CUDA

STARTS = torch.tensor([0, 5, 5, 6, 20, 20], dtype=torch.int32)
NODES, REAL, HEADS = 23, 20, 2


@pytest.mark.sampled(5)
@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("size", [16, 64, 96])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiles_for_hopper(dtype, size, p):
    """Tensor cores, wide loads, no atomics and almost no spills; one launch per direction."""
    rows, seed = torch.zeros(NODES, 3 * 4 * size, dtype=dtype), torch.tensor([1]) if p else None
    out, lse = torch.zeros(NODES, 4 * size, dtype=dtype), torch.zeros(4, NODES)
    both = [
        *launches(CUDA["graph_attention"], rows, STARTS, seed, 4, 222, 4, p),
        *launches(
            CUDA["graph_attention_backward"], out, rows, out, lse, STARTS, seed, 4, 222, 4, p
        ),
    ]
    assert [each.name for each in both] == ["graph_attention_forward", "graph_attention_backward"]
    for each in both:
        assert each.atomics == []
        assert each.matrix_instructions > 0
        assert each.widest("ld") >= 32 * dtype.itemsize
        assert each.spilled <= 24  # bytes per thread: 16 with Triton 3.9, 24 with 3.8
        assert each.shared <= 64 * 1024


def attend(rows, starts=STARTS, p=0.0, seed=None):
    return graph_attention(rows, starts, heads=HEADS, longest=14, p=p, seed=seed, site=4)


@pytest.mark.parametrize("size", [16, 20])
def test_graphs_of_several_blocks_of_queries(size):
    """Rows of whole vectors and others; more queries than the backward pass holds at once."""
    starts = torch.tensor([0, 3, 3, 140, 157], dtype=torch.int32)
    assert starts[3] - starts[2] > 2 * cpu.QUERIES
    rows = torch.randn(160, 3 * HEADS * size, dtype=torch.float64, requires_grad=True)
    seed, p, weight = torch.tensor([3]), 0.25, torch.randn(160, HEADS * size, dtype=torch.float64)
    mask = torch.zeros(HEADS, 160, 160, dtype=torch.bool)
    mask[:, :157, :157] = draw_mask(starts, seed, HEADS, 137, 4, p)
    expected = graph_attention_reference(rows, starts, HEADS, mask, p)
    (wanted,) = torch.autograd.grad(expected, rows, weight)
    found = graph_attention(rows, starts, heads=HEADS, longest=137, p=p, seed=seed, site=4)
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-11)
    (grad,) = torch.autograd.grad(found, rows, weight)
    torch.testing.assert_close(grad, wanted, atol=1e-13, rtol=1e-11)


def test_dropout_keeps_its_share_and_goes_by_seed_and_site():
    assert_drops_its_share(draw_mask)


def test_what_it_cannot_do_is_said():
    with pytest.raises(ValueError, match="give a multiple of 6"):
        attend(torch.zeros(NODES, 10))
    with pytest.raises(ValueError, match=r"p=1\.0"):
        attend(torch.zeros(NODES, 24), p=1.0)
    with pytest.raises(ValueError, match="without a seed: draw one"):
        attend(torch.zeros(NODES, 24), p=0.5)
