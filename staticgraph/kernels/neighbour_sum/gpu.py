"""``neighbour_sum`` in Triton: one program per node, edges in order, no atomic addition.

Forward walks the edges into a node by ``row_ptr``. Backward walks the edges out of it by
``col_ptr`` and ``transpose``, and writes each edge's own gradient on the way, since every edge
leaves exactly one node. The gradient of a table that edges share (``code``) is then summed from the
edges' gradients by the matrix product of :mod:`staticgraph.kernels.table_sum`. Sums are float32
(float64 for float64).
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import by_row, own_row, read, write
from staticgraph.kernels.neighbour_sum.reference import MULTIPLY, WEIGHED
from staticgraph.kernels.shapes import common_dtype, contiguous
from staticgraph.kernels.table_sum import gpu as tables

COPY = tl.constexpr(0)
RELU_ADD = tl.constexpr(2)


@triton.jit
def neighbour_sum_forward(
    x,
    edge,
    code,
    src,
    row_ptr,
    self_eps,
    weight,
    out,
    width: tl.constexpr,
    TRANSFORM: tl.constexpr,
    CODED: tl.constexpr,
    SCALAR: tl.constexpr,
    SCALED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the row of node ``i``, sum or mean of the messages over the edges into it."""
    i, f, inside = own_row(width, BLOCK)
    first = tl.load(row_ptr + i)
    last = tl.load(row_ptr + i + 1)
    total = tl.zeros([BLOCK], WIDE)
    for e in range(first, last):
        j = tl.load(src + e)
        value = read(x + j * width + f, inside, WIDE)
        if TRANSFORM != COPY:
            r = tl.load(code + e) if CODED else e + i * 0  # int64 from i
            if SCALAR:
                value = value * tl.load(edge + r).to(WIDE)
            else:
                term = read(edge + r * width + f, inside, WIDE)
                if TRANSFORM == RELU_ADD:
                    value = value + term
                    value = tl.where(value <= 0, 0, value)
                else:
                    value = value * term
        if WEIGHTED:
            value = value * tl.load(weight + e).to(WIDE)
        total += value
    if MEAN:
        total = total / tl.maximum(last - first, 1).to(WIDE)
    if SCALED:
        own = read(x + i * width + f, inside, WIDE)
        total += (1 + tl.load(self_eps).to(WIDE)) * own
    write(out + i * width + f, total, inside)


@triton.jit
def neighbour_sum_backward(
    grad,
    x,
    edge,
    code,
    dst,
    row_ptr,
    col_ptr,
    transpose,
    self_eps,
    weight,
    into_x,
    into_edge,
    dx,
    dedge,
    width: tl.constexpr,
    INTO_X: tl.constexpr,
    INTO_EDGE: tl.constexpr,
    TRANSFORM: tl.constexpr,
    CODED: tl.constexpr,
    SCALAR: tl.constexpr,
    SCALED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    MEAN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradient of node ``j``'s row, and of the edges out of it."""
    j, f, inside = own_row(width, BLOCK)
    own = read(x + j * width + f, inside, WIDE)
    total = tl.zeros([BLOCK], WIDE)
    if INTO_X:
        total += read(into_x + j * width + f, inside, WIDE)
    if SCALED:
        mine = read(grad + j * width + f, inside, WIDE)
        total += (1 + tl.load(self_eps).to(WIDE)) * mine
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        part = read(grad + i * width + f, inside, WIDE)
        if MEAN:
            part = part / (tl.load(row_ptr + i + 1) - tl.load(row_ptr + i)).to(WIDE)
        if WEIGHTED:
            part = part * tl.load(weight + e).to(WIDE)
        if TRANSFORM == COPY:
            total += part
        else:
            r = tl.load(code + e) if CODED else e
            if SCALAR:
                to_edge = tl.sum(part * own, 0)
                if INTO_EDGE:
                    to_edge += tl.load(into_edge + e).to(WIDE)
                tl.store(dedge + e, to_edge.to(dedge.dtype.element_ty))
                total += part * tl.load(edge + r).to(WIDE)
            else:
                term = read(edge + r * width + f, inside, WIDE)
                if TRANSFORM == RELU_ADD:
                    part = tl.where(own + term <= 0, 0, part)
                    to_edge = part
                else:
                    to_edge = part * own
                    part = part * term
                total += part
                if INTO_EDGE:
                    before = tl.load(into_edge + e * width + f, mask=inside, other=0)
                    to_edge += before.to(WIDE)
                at = dedge + e * width + f
                write(at, to_edge, inside)
    write(dx + j * width + f, total, inside)


def forward(
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    edges: Sequence[Tensor],
    self_eps: Tensor | None,
    weight: Tensor | None,
    transform: int,
    mean: bool,
) -> Tensor:
    """Runs forward in one launch."""
    out, (src, _, row_ptr, _, _) = torch.empty_like(x, dtype=common_dtype(x, edge)), edges
    neighbour_sum_forward[(len(x),)](
        x,
        x if edge is None else edge,
        src if code is None else code,
        src,
        row_ptr,
        x if self_eps is None else self_eps,
        x if weight is None else weight,
        out,
        x.size(1),
        **_options(x, edge, code, self_eps, weight, transform, mean),
    )
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    edges: Sequence[Tensor],
    self_eps: Tensor | None,
    weight: Tensor | None,
    into_x: Tensor | None,
    into_edge: Tensor | None,
    transform: int,
    mean: bool,
    each: bool,
) -> tuple[Tensor, Tensor]:
    """Runs backward in one launch, or three if edges share a table and ``each`` is false."""
    _, dst, row_ptr, col_ptr, transpose = edges
    dx, (into_x, into_edge) = torch.empty_like(x), contiguous(into_x, into_edge)
    if edge is None:
        dedge = x.new_empty(0)
    else:
        # An edge's part of a table's gradient stays in the accumulation dtype until it is summed.
        dtype = edge.dtype if code is None else torch.promote_types(edge.dtype, torch.float32)
        dedge = edge.new_empty(len(dst), *edge.shape[1:], dtype=dtype)
    into_each = into_edge if code is None or each else None
    neighbour_sum_backward[(len(x),)](
        grad,
        x,
        x if edge is None else edge,
        dst if code is None else code,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        x if self_eps is None else self_eps,
        x if weight is None else weight,
        x if into_x is None else into_x,
        x if into_each is None else into_each,
        dx,
        dedge,
        x.size(1),
        INTO_X=into_x is not None,
        INTO_EDGE=into_each is not None,
        **_options(x, edge, code, self_eps, weight, transform, mean),
    )
    if edge is not None and code is not None and not each:
        rows = dedge.unsqueeze(1) if dedge.dim() == 1 else dedge
        dedge = tables.backward(rows, code.view(-1, 1), None, len(edge), into_edge, edge.dtype)
        dedge = dedge.view(edge.shape)
    return dx, dedge


def _options(
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    self_eps: Tensor | None,
    weight: Tensor | None,
    transform: int,
    mean: bool,
) -> dict[str, object]:
    return {
        "TRANSFORM": MULTIPLY if transform == WEIGHED else transform,
        "CODED": code is not None,
        "SCALAR": edge is not None and edge.dim() == 1,
        "SCALED": self_eps is not None,
        "WEIGHTED": weight is not None,
        "MEAN": mean,
        **by_row(common_dtype(x, edge), x.size(1)),
    }
