"""``gcn_sum`` in Triton: one program per node, edges in order, no atomic addition."""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import block, read, warps, wide, write


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
    i = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    inside = f < width
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
    j = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    inside = f < width
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
    i = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    inside = f < width
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
    first = tl.load(row_ptr + i)
    end = tl.load(row_ptr + i + 1)
    last = first - 1
    if LOOPS:
        for e in range(first, end):
            last = tl.where(tl.load(src + e) == i, e, last)
    for e in range(first, end):
        value = slope
        if LOOPS:
            value = tl.where(tl.load(src + e) == i, 0, slope)
            value = tl.where(e == last, slope + tl.load(down + i).to(WIDE), value)
        tl.store(dweight + e, value)


def degrees(
    src: Tensor, row_ptr: Tensor, weight: Tensor | None, fill: float, loops: bool, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Runs the operator in one launch."""
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
    src: Tensor,
    row_ptr: Tensor,
    loops: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Runs forward in one launch."""
    out = torch.empty_like(x, dtype=dtype)
    gcn_sum_forward[(len(x),)](
        x,
        x if bias is None else bias,
        root,
        own,
        root if weight is None else weight,
        src,
        row_ptr,
        out,
        x.size(1),
        BIASED=bias is not None,
        **_options(x, weight, loops),
    )
    return out


def backward(
    grad: Tensor,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    dst: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    loops: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Runs backward in one launch."""
    dx = torch.empty_like(grad, dtype=dtype)
    gcn_sum_backward[(len(grad),)](
        grad,
        root,
        own,
        root if weight is None else weight,
        dst,
        col_ptr,
        transpose,
        dx,
        grad.size(1),
        **_options(grad, weight, loops),
    )
    return dx


def weights_backward(
    grad: Tensor,
    x: Tensor,
    root: Tensor,
    own: Tensor,
    weight: Tensor | None,
    src: Tensor,
    dst: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    loops: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs the operator in one launch."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    droot, down, dweight = (x.new_empty(n, dtype=dtype) for n in (len(x), len(x), len(src)))
    gcn_sum_weights[(len(x),)](
        grad.contiguous(),
        x.contiguous(),
        root,
        own,
        root if weight is None else weight,
        src,
        dst,
        row_ptr,
        col_ptr,
        transpose,
        droot,
        down,
        dweight,
        x.size(1),
        **_options(x, weight, loops),
    )
    return droot, down, dweight


def degrees_backward(
    droot: Tensor, down: Tensor, root: Tensor, src: Tensor, row_ptr: Tensor, loops: bool
) -> Tensor:
    """Runs the operator in one launch."""
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


def _options(rows: Tensor, weight: Tensor | None, loops: bool) -> dict[str, Any]:
    """Returns the launch options, with one program per row."""
    columns = block(rows.size(1))
    return {
        "WEIGHTED": weight is not None,
        "LOOPS": loops,
        "WIDE": wide(rows.dtype),
        "BLOCK": columns,
        "num_warps": warps(columns),
    }
