"""Compares a kernel's results and gradients with its reference in float64, and draws graphs.

A kernel's error is bounded by the rounding of its longest sum in its own precision; half precisions
are summed in float32, so their bound is one rounding of the result.
"""

from __future__ import annotations

import torch
from hypothesis import strategies as st

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def agree(kernel, reference, tensors: list[torch.Tensor | None], terms: int) -> None:
    """Asserts that result and gradients equal the reference's from the same inputs in float64."""
    ours = [None if t is None else t.clone().requires_grad_() for t in tensors]
    wide = [None if t is None else t.double().requires_grad_() for t in tensors]
    out, expected = kernel(*ours), reference(*wide)
    grad = torch.randn(expected.shape).to(out.dtype)
    found = torch.autograd.grad(out, [t for t in ours if t is not None], grad)
    right = torch.autograd.grad(expected, [t for t in wide if t is not None], grad.double())
    for a, b in zip((out, *found), (expected, *right), strict=True):
        assert a.shape == b.shape
        if not a.numel():
            continue
        wide_eps = torch.finfo(torch.promote_types(a.dtype, torch.float32)).eps
        bound = (terms * wide_eps + torch.finfo(a.dtype).eps) * max(1.0, float(b.abs().max()))
        assert (a.double() - b).abs().max() <= bound


@st.composite
def graphs(draw):
    """Draws edges sorted by destination, with pointers; including isolated nodes and loops."""
    nodes, edges = draw(st.integers(1, 12)), draw(st.integers(0, 30))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    src = torch.randint(nodes, (edges,), generator=generator)
    dst = torch.randint(nodes, (edges,), generator=generator).sort().values
    everything = torch.arange(nodes + 1)
    transpose = torch.argsort(src, stable=True)
    return (
        nodes,
        src,
        dst,
        torch.searchsorted(dst, everything).int(),
        torch.searchsorted(src[transpose].contiguous(), everything).int(),
        transpose.int(),
    )


def random_graph(nodes: int, edges: int) -> tuple[torch.Tensor, ...]:
    """Returns ``src, dst, row_ptr, col_ptr, transpose`` of a graph with edges sorted by dst."""
    generator = torch.Generator().manual_seed(3)
    src = torch.randint(nodes, (edges,), generator=generator)
    dst = torch.randint(nodes, (edges,), generator=generator).sort().values
    everything, order = torch.arange(nodes + 1), torch.argsort(src, stable=True)
    starts = [torch.searchsorted(by, everything).int() for by in (dst, src[order].contiguous())]
    return src, dst, *starts, order.int()
