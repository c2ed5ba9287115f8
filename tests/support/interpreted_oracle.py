"""The float64 reference for kernels in Triton's interpreter, and the tolerance of results."""

from __future__ import annotations

import torch

DTYPES = [torch.float32, torch.bfloat16]


def exact(reference, tensors, grad, *rest):
    """Returns result and gradients of the reference in float64, from the same (rounded) inputs."""
    wide = [None if t is None else t.double().requires_grad_() for t in tensors]
    out = reference(*wide, *rest)
    out = out[0] if isinstance(out, tuple) else out
    wanted = [t for t in wide if t is not None]
    return out, torch.autograd.grad(out, wanted, grad.double())


def close(found: torch.Tensor, expected: torch.Tensor, terms: int) -> bool:
    """Tests the error against the rounding of ``terms`` float32 additions and of the dtype."""
    scale = expected.abs().max().item() + 1e-30
    bound = terms * torch.finfo(torch.float32).eps + torch.finfo(found.dtype).eps
    return bool((found.double() - expected).abs().max() <= bound * scale)


def graph(nodes: int, edges: int):
    generator = torch.Generator().manual_seed(nodes)
    src = torch.randint(nodes, (edges,), generator=generator)
    dst = torch.randint(nodes, (edges,), generator=generator).sort().values
    everything = torch.arange(nodes + 1)
    row_ptr = torch.searchsorted(dst, everything).int()
    transpose = torch.argsort(src, stable=True)
    col_ptr = torch.searchsorted(src[transpose].contiguous(), everything).int()
    return src, dst, row_ptr, col_ptr, transpose.int()
