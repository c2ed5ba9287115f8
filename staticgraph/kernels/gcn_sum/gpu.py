"""``gcn_sum`` in Triton: one program per node, edges in order, no atomic addition."""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import by_row, own_row, read, wide, write


@triton.jit
def gcn_sum_degrees(
    weight,
    src,
    row_ptr,
    root,
    own,
    fill: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LOOPS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program: the weight of node ``i``'s self-loop, and the inverse square root of its
    degree."""
    i = tl.program_id(0).to(tl.int64)
    total = tl.zeros([], WIDE)
    mine = total + fill if LOOPS else total
    for e in range(tl.load(row_ptr + i), tl.load(row_ptr + i + 1)):
        value = tl.load(weight + e).to(WIDE) if WEIGHTED else total * 0 + 1
        if LOOPS:
            loop = tl.load(src + e) == i
            mine = tl.where(loop, value, mine)
            value = tl.where(loop, 0, value)
        total += value
    total += mine
    tl.store(own + i, mine)
    tl.store(root + i, tl.where(total == 0, 0, 1 / tl.sqrt(total)))


@triton.jit
def gcn_sum_forward(
    x,
    bias,
    root,
    own,
    weight,
    src,
    row_ptr,
    out,
    width: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LOOPS: tl.constexpr,
    BIASED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the row of node ``i``, the normalised sum over its self-loop and the edges into
    it."""
    i, f, inside = own_row(width, BLOCK)
    mine = tl.load(root + i).to(WIDE)
    share = tl.load(own + i).to(WIDE) * mine * mine
    total = share * read(x + i * width + f, inside, WIDE)
    for e in range(tl.load(row_ptr + i), tl.load(row_ptr + i + 1)):
        j = tl.load(src + e)
        share = mine * tl.load(root + j).to(WIDE)
        if WEIGHTED:
            share = share * tl.load(weight + e).to(WIDE)
        if LOOPS:
            share = tl.where(j == i, 0, share)
        total += share * read(x + j * width + f, inside, WIDE)
    if BIASED:
        total += read(bias + f, inside, WIDE)
    write(out + i * width + f, total, inside)


@triton.jit
def gcn_sum_backward(
    grad,
    root,
    own,
    weight,
    dst,
    col_ptr,
    transpose,
    dx,
    width: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LOOPS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradient of node ``j``'s row, over its self-loop and the edges out of it."""
    j, f, inside = own_row(width, BLOCK)
    mine = tl.load(root + j).to(WIDE)
    share = tl.load(own + j).to(WIDE) * mine * mine
    total = share * read(grad + j * width + f, inside, WIDE)
    for k in range(tl.load(col_ptr + j), tl.load(col_ptr + j + 1)):
        e = tl.load(transpose + k).to(tl.int64)
        i = tl.load(dst + e)
        share = mine * tl.load(root + i).to(WIDE)
        if WEIGHTED:
            share = share * tl.load(weight + e).to(WIDE)
        if LOOPS:
            share = tl.where(i == j, 0, share)
        total += share * read(grad + i * width + f, inside, WIDE)
    write(dx + j * width + f, total, inside)


@triton.jit
def gcn_sum_weights(
    grad,
    x,
    root,
    own,
    weight,
    src,
    dst,
    row_ptr,
    col_ptr,
    transpose,
    droot,
    down,
    dweight,
    width: tl.constexpr,
    WEIGHTED: tl.constexpr,
    LOOPS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the gradients of node ``i``'s root and self-loop, over the edges at either end,
    and of the weights of the edges into it."""
    i, f, inside = own_row(width, BLOCK)
    mine = tl.load(root + i).to(WIDE)
    given = read(grad + i * width + f, inside, WIDE)
    row = read(x + i * width + f, inside, WIDE)
    product = tl.sum(given * row, 0)
    tl.store(down + i, mine * mine * product)
    total = 2 * tl.load(own + i).to(WIDE) * mine * product
    for e in range(tl.load(row_ptr + i), tl.load(row_ptr + i + 1)):
        j = tl.load(src + e)
        other = tl.load(root + j).to(WIDE)
        theirs = read(x + j * width + f, inside, WIDE)
        product = tl.sum(given * theirs, 0)
        if LOOPS:
            product = tl.where(j == i, 0, product)
        tl.store(dweight + e, mine * other * product)
        if WEIGHTED:
            product = product * tl.load(weight + e).to(WIDE)
        total += other * product
    for k in range(tl.load(col_ptr + i), tl.load(col_ptr + i + 1)):
        out = tl.load(transpose + k).to(tl.int64)
        j = tl.load(dst + out)
        theirs = read(grad + j * width + f, inside, WIDE)
        product = tl.sum(theirs * row, 0)
        if LOOPS:
            product = tl.where(j == i, 0, product)
        if WEIGHTED:
            product = product * tl.load(weight + out).to(WIDE)
        total += tl.load(root + j).to(WIDE) * product
    tl.store(droot + i, total)


@triton.jit
def gcn_sum_degrees_backward(
    droot, down, root, src, row_ptr, dweight, LOOPS: tl.constexpr, WIDE: tl.constexpr
):
    """One program: the gradients of the weights of the edges into node ``i``, through its degree
    and its self-loop."""
    i = tl.program_id(0).to(tl.int64)
    mine = tl.load(root + i).to(WIDE)
    slope = -0.5 * mine * mine * mine * tl.load(droot + i).to(WIDE)
    own = slope + tl.load(down + i).to(WIDE)
    for e in range(tl.load(row_ptr + i), tl.load(row_ptr + i + 1)):
        value = slope
        if LOOPS:
            value = tl.where(tl.load(src + e) == i, own, slope)
        tl.store(dweight + e, value)


def degrees(
    edges: Sequence[Tensor], weight: Tensor | None, fill: float, loops: bool, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Runs the operator in one launch."""
    src, _, row_ptr, _, _ = edges
    dtype = torch.promote_types(like.dtype, torch.float32)
    root = torch.empty(len(row_ptr) - 1, dtype=dtype, device=src.device)
    own = torch.empty_like(root)
    gcn_sum_degrees[(len(root),)](
        root if weight is None else weight,
        src,
        row_ptr,
        root,
        own,
        fill,
        WEIGHTED=weight is not None,
        LOOPS=loops,
        WIDE=wide(dtype),
        num_warps=1,
    )
    return root, own


def forward(
    x: Tensor,
    bias: Tensor | None,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    edges: Sequence[Tensor],
    loops: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Runs forward in one launch."""
    out, (src, _, row_ptr, _, _) = torch.empty_like(x, dtype=dtype), edges
    weights, options = _given(x, root, weight, loops)
    gcn_sum_forward[(len(x),)](
        x,
        x if bias is None else bias,
        root,
        own,
        weights,
        src,
        row_ptr,
        out,
        x.size(1),
        BIASED=bias is not None,
        **options,
    )
    return out


def backward(
    grad: Tensor,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    edges: Sequence[Tensor],
    loops: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Runs backward in one launch."""
    dx, (_, dst, _, col_ptr, transpose) = torch.empty_like(grad, dtype=dtype), edges
    weights, options = _given(grad, root, weight, loops)
    given = grad, root, own, weights, dst, col_ptr, transpose, dx, grad.size(1)
    gcn_sum_backward[(len(grad),)](*given, **options)
    return dx


def weights_backward(
    grad: Tensor,
    x: Tensor,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    edges: Sequence[Tensor],
    loops: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs the operator in one launch."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    droot, down, dweight = (x.new_empty(n, dtype=dtype) for n in (len(x), len(x), len(edges[0])))
    weights, options = _given(x, root, weight, loops)
    given = grad.contiguous(), x.contiguous(), root, own, weights, *edges
    gcn_sum_weights[(len(x),)](*given, droot, down, dweight, x.size(1), **options)
    return droot, down, dweight


def degrees_backward(
    droot: Tensor, down: Tensor, root: Tensor, edges: Sequence[Tensor], loops: bool
) -> Tensor:
    """Runs the operator in one launch."""
    src, _, row_ptr, _, _ = edges
    dweight = root.new_empty(len(src))
    gcn_sum_degrees_backward[(len(root),)](
        droot,
        down,
        root,
        src,
        row_ptr,
        dweight,
        LOOPS=loops,
        WIDE=wide(root.dtype),
        num_warps=1,
    )
    return dweight


def _given(
    rows: Tensor, root: Tensor, weight: Tensor | None, loops: bool
) -> tuple[Tensor, dict[str, Any]]:
    """Returns the weights, and the launch options with one program per row."""
    options = {"WEIGHTED": weight is not None, "LOOPS": loops}
    return root if weight is None else weight, options | by_row(rows.dtype, rows.size(1))
