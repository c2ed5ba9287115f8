"""``linear`` on CUDA: torch's products, with ReLU's mask and the bias gradient in one pass.

Small layers are handled by :mod:`staticgraph.kernels.linear.small` instead. torch needs a kernel
for the mask, one for the sum over rows, and an addition for an input that is read twice. Here the
mask is applied and summed chunk by chunk, the partial sums are added in order (no atomic addition),
and the addition is part of the product (``addmm``).
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.internals.dispatch import addmm_activation
from staticgraph.kernels.launch import read, tile, wide, wide_like, write
from staticgraph.kernels.table_sum.gpu import join

ROWS = 16
COLUMNS = 64
MAX_CHUNKS = 64


@triton.jit
def linear_masked_sums(
    grad,
    out,
    masked,
    partial,
    rows,
    width: tl.constexpr,
    rows_a_chunk,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One program: the gradient under ReLU's mask, and its sum, for a chunk of rows and a block of
    columns."""
    chunk = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = chunk * rows_a_chunk
    last = tl.minimum(first + rows_a_chunk, rows)
    sums = tl.zeros([COLUMNS], WIDE)
    for start in range(first, last, ROWS):
        _, at, here = tile(start, last, f, width, ROWS)
        part = read(grad + at, here, WIDE)
        part = tl.where(read(out + at, here, WIDE) <= 0, 0, part)
        write(masked + at, part, here)
        sums += tl.sum(part, 0)
    tl.store(partial + chunk * width + f, sums, mask=f < width)


def masked_sums(grad: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ``grad`` masked to where ``out`` is above zero, and its sum over the rows; two
    launches."""
    grad = grad.contiguous()
    rows, width = grad.shape
    rows_a_chunk = triton.cdiv(triton.cdiv(max(rows, 1), MAX_CHUNKS), ROWS) * ROWS
    chunks = triton.cdiv(max(rows, 1), rows_a_chunk)
    masked, partial = torch.empty_like(grad), wide_like(grad, chunks, 1, width)
    linear_masked_sums[(chunks, triton.cdiv(width, COLUMNS))](
        grad,
        out,
        masked,
        partial,
        rows,
        width,
        rows_a_chunk,
        WIDE=wide(grad.dtype),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=4,
    )
    return masked, join(partial, grad.dtype).view(width)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Runs forward in one launch; ReLU without a bias takes a second one.

    ``_addmm_activation`` has no public name; Inductor's own pass for a linear layer followed by
    ReLU calls it on CUDA. cuBLASLt adds the bias and clips in the product's epilogue, in float32
    and the half precisions; where it cannot (a single column), torch falls back to a separate ReLU
    launch.
    """
    if relu and bias is not None:
        return addmm_activation(bias, x, weight.t(), use_gelu=False)
    out = F.linear(x, weight, bias)
    return out.relu_() if relu else out


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    out: Tensor | None,
    into: Tensor | None,
    into_weight: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs backward: two products, two launches with ReLU or one without, and the casts that mixed
    dtypes need."""
    if out is None:
        dbias = grad.sum(0)
    else:
        grad, dbias = masked_sums(grad, out)
    x_wide, by = x.to(grad.dtype), weight.to(grad.dtype)
    if weight.is_contiguous():
        dweight = _product(grad.t(), x_wide, into_weight, weight.dtype)
    else:  # in its own layout
        across = None if into_weight is None else into_weight.t()
        dweight = _product(x_wide.t(), grad, across, weight.dtype).t()
    return _product(grad, by, into, x.dtype), dweight, dbias.to(weight.dtype)


def _product(a: Tensor, b: Tensor, into: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Computes ``a @ b``, and adds what is given."""
    if into is not None and dtype == a.dtype:
        return torch.addmm(into, a, b)
    out = (a @ b).to(dtype)
    return out if into is None else out.add_(into)
