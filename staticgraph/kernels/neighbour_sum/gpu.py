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

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import Launch, by_row, own_row, read, write
from staticgraph.kernels.neighbour_sum.op import each_like
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
    transform: tl.constexpr,
    mean: tl.constexpr,
    SCALAR: tl.constexpr,
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
        if transform != COPY:
            r = tl.load(code + e) if code is not None else e + i * 0  # int64 from i
            if SCALAR:
                value = value * tl.load(edge + r).to(WIDE)
            else:
                term = read(edge + r * width + f, inside, WIDE)
                if transform == RELU_ADD:
                    value = value + term
                    value = tl.where(value <= 0, 0, value)
                else:
                    value = value * term
        if weight is not None:
            value = value * tl.load(weight + e).to(WIDE)
        total += value
    if mean:
        total = total / tl.maximum(last - first, 1).to(WIDE)
    if self_eps is not None:
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
    transform: tl.constexpr,
    mean: tl.constexpr,
    SCALAR: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradient of node ``j``'s row, and of the edges out of it."""
    j, f, inside = own_row(width, BLOCK)
    own = read(x + j * width + f, inside, WIDE)
    total = tl.zeros([BLOCK], WIDE)
    if into_x is not None:
        total += read(into_x + j * width + f, inside, WIDE)
    if self_eps is not None:
        mine = read(grad + j * width + f, inside, WIDE)
        total += (1 + tl.load(self_eps).to(WIDE)) * mine
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        part = read(grad + i * width + f, inside, WIDE)
        if mean:
            part = part / (tl.load(row_ptr + i + 1) - tl.load(row_ptr + i)).to(WIDE)
        if weight is not None:
            part = part * tl.load(weight + e).to(WIDE)
        if transform == COPY:
            total += part
        else:
            r = tl.load(code + e) if code is not None else e
            if SCALAR:
                to_edge = tl.sum(part * own, 0)
                if into_edge is not None:
                    to_edge += tl.load(into_edge + e).to(WIDE)
                tl.store(dedge + e, to_edge.to(dedge.dtype.element_ty))
                total += part * tl.load(edge + r).to(WIDE)
            else:
                term = read(edge + r * width + f, inside, WIDE)
                if transform == RELU_ADD:
                    part = tl.where(own + term <= 0, 0, part)
                    to_edge = part
                else:
                    to_edge = part * own
                    part = part * term
                total += part
                if into_edge is not None:
                    before = tl.load(into_edge + e * width + f, mask=inside, other=0)
                    to_edge += before.to(WIDE)
                at = dedge + e * width + f
                write(at, to_edge, inside)
    write(dx + j * width + f, total, inside)


def _options(x: Tensor, edge: Tensor | None) -> dict[str, Any]:
    return {
        "grid": (len(x),),
        "SCALAR": edge is not None and edge.dim() == 1,
        **by_row(common_dtype(x, edge), x.size(1)),
    }


def _backward_options(
    x: Tensor,
    edge: Tensor | None,
    code: Tensor | None,
    into_x: Tensor | None,
    into_edge: Tensor | None,
    each: bool,
) -> dict[str, Any]:
    options = _options(x, edge)
    into_x, into_edge = contiguous(into_x, into_edge)
    if edge is not None and code is not None and not each:
        # An edge's part of a table's gradient stays in the accumulation dtype until it is summed.
        options["dedge"] = each_like(edge, code)
        options["into_table"], into_edge = into_edge, None
    return {**options, "into_x": into_x, "into_edge": into_edge}


def _sum_tables(results: tuple[Tensor, ...], named: dict[str, Any]) -> tuple[Tensor, ...]:
    if "into_table" not in named:
        return results
    edge, parts, code = named["edge"], named["dedge"], named["code"].view(-1, 1)
    rows = parts.unsqueeze(1) if parts.dim() == 1 else parts
    dedge = tables.backward(rows, code, None, len(edge), named["into_table"], edge.dtype)
    return results[0], dedge.view(edge.shape)


forward: Launch = Launch(neighbour_sum_forward, options=_options)
backward: Launch = Launch(neighbour_sum_backward, options=_backward_options, finish=_sum_tables)
