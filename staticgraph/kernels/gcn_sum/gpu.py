"""``gcn_sum`` in Triton: one program per node, edges in order, no atomic addition."""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import Launch, each_row, own_row, read, wide, write


@triton.jit
def gcn_sum_degrees(
    weight,
    src,
    row_ptr,
    root,
    own,
    fill: tl.constexpr,
    loops: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One program: the weight of node ``i``'s self-loop, and the inverse square root of its
    degree."""
    i = tl.program_id(0).to(tl.int64)
    total = tl.zeros([], WIDE)
    mine = total + fill if loops else total
    for e in range(tl.load(row_ptr + i), tl.load(row_ptr + i + 1)):
        value = tl.load(weight + e).to(WIDE) if weight is not None else total * 0 + 1
        if loops:
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
    dst,
    row_ptr,
    col_ptr,
    transpose,
    out,
    width: tl.constexpr,
    loops: tl.constexpr,
    transposed: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: the row of node ``i``, the normalised sum over its self-loop and the edges into
    it, or ``transposed``, out of it."""
    i, f, inside = own_row(width, BLOCK)
    mine = tl.load(root + i).to(WIDE)
    share = tl.load(own + i).to(WIDE) * mine * mine
    total = share * read(x + i * width + f, inside, WIDE)
    ends, ptr = (dst, col_ptr) if transposed else (src, row_ptr)
    for k in range(tl.load(ptr + i), tl.load(ptr + i + 1)):
        e = tl.load(transpose + k).to(tl.int64) if transposed else k
        j = tl.load(ends + e)
        share = mine * tl.load(root + j).to(WIDE)
        if weight is not None:
            share = share * tl.load(weight + e).to(WIDE)
        if loops:
            share = tl.where(j == i, 0, share)
        total += share * read(x + j * width + f, inside, WIDE)
    if bias is not None:
        total += read(bias + f, inside, WIDE)
    write(out + i * width + f, total, inside)


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
    loops: tl.constexpr,
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
        if loops:
            product = tl.where(j == i, 0, product)
        tl.store(dweight + e, mine * other * product)
        if weight is not None:
            product = product * tl.load(weight + e).to(WIDE)
        total += other * product
    for k in range(tl.load(col_ptr + i), tl.load(col_ptr + i + 1)):
        out = tl.load(transpose + k).to(tl.int64)
        j = tl.load(dst + out)
        theirs = read(grad + j * width + f, inside, WIDE)
        product = tl.sum(theirs * row, 0)
        if loops:
            product = tl.where(j == i, 0, product)
        if weight is not None:
            product = product * tl.load(weight + out).to(WIDE)
        total += tl.load(root + j).to(WIDE) * product
    tl.store(droot + i, total)


@triton.jit
def gcn_sum_degrees_backward(
    grad_root, grad_own, root, src, row_ptr, dweight, loops: tl.constexpr, WIDE: tl.constexpr
):
    """One program: the gradients of the weights of the edges into node ``i``, through its degree
    and its self-loop."""
    i = tl.program_id(0).to(tl.int64)
    mine = tl.load(root + i).to(WIDE)
    slope = -0.5 * mine * mine * mine * tl.load(grad_root + i).to(WIDE)
    own = slope + tl.load(grad_own + i).to(WIDE)
    for e in range(tl.load(row_ptr + i), tl.load(row_ptr + i + 1)):
        value = slope
        if loops:
            value = tl.where(tl.load(src + e) == i, own, slope)
        tl.store(dweight + e, value)


def _each_node(root: Tensor) -> dict[str, Any]:
    return {"grid": (len(root),), "WIDE": wide(root.dtype), "num_warps": 1}


degrees: Launch = Launch(gcn_sum_degrees, options=_each_node)
forward: Launch = Launch(gcn_sum_forward, options=each_row)
weights_backward: Launch = Launch(gcn_sum_weights, options=each_row)
degrees_backward: Launch = Launch(gcn_sum_degrees_backward, options=_each_node)
