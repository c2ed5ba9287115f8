"""Rows of nodes <-> blocks of heads in Triton: one program a place, or a node; no atomics."""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from staticgraph.kernels.launch import block as block_of
from staticgraph.kernels.launch import warps


@triton.jit
def to_block_kernel(
    values,
    node_of_place,
    first_block,
    second_block,
    third_block,
    nodes,
    width,
    places,
    heads,
    size,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    node = tl.load(node_of_place + place)
    here = (f < width) & (node + 0 * f < nodes)
    g = place // places
    m = place % places
    at = ((g * heads + f // size) * places + m) * size + f % size
    for part in tl.static_range(PARTS):  # pyright: ignore
        value = tl.load(values + (node * PARTS + part) * width + f, mask=here, other=0)
        if part == 0:
            tl.store(first_block + at, value, mask=f < width)
        elif part == 1:
            tl.store(second_block + at, value, mask=f < width)
        else:
            tl.store(third_block + at, value, mask=f < width)


@triton.jit
def to_rows_kernel(
    first_block,
    second_block,
    third_block,
    place_of_node,
    values,
    width,
    places,
    all_places,
    heads,
    size,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    node = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    place = tl.load(place_of_node + node)
    here = (f < width) & (place + 0 * f < all_places)
    g = place // places
    m = place % places
    at = ((g * heads + f // size) * places + m) * size + f % size
    for part in tl.static_range(PARTS):  # pyright: ignore
        if part == 0:
            value = tl.load(first_block + at, mask=here, other=0)
        elif part == 1:
            value = tl.load(second_block + at, mask=here, other=0)
        else:
            value = tl.load(third_block + at, mask=here, other=0)
        tl.store(values + (node * PARTS + part) * width + f, value, mask=f < width)


def to_blocks(
    rows: Tensor, node_of_place: Tensor, graphs: int, heads: int, parts: int
) -> list[Tensor]:
    """``parts`` blocks ``[G, H, M, D]`` of ``rows [N, parts * H * D]``; one launch."""
    width = rows.size(1) // parts
    places = len(node_of_place) // graphs
    shape = (graphs, heads, places, width // heads)
    blocks = [rows.new_empty(shape) for _ in range(parts)]
    columns = block_of(width)
    to_block_kernel[(len(node_of_place),)](
        rows.contiguous(),
        node_of_place,
        blocks[0],
        blocks[parts // 2],
        blocks[-1],
        len(rows),
        width,
        places,
        heads,
        width // heads,
        PARTS=parts,
        BLOCK=columns,
        num_warps=warps(columns),
    )
    return blocks


def to_rows(blocks: Sequence[Tensor], place_of_node: Tensor) -> Tensor:
    """The way back; one launch."""
    blocks = [value.contiguous() for value in blocks]
    graphs, heads, places, size = blocks[0].shape
    parts, width = len(blocks), heads * size
    rows = blocks[0].new_empty(len(place_of_node), parts * width)
    columns = block_of(width)
    to_rows_kernel[(len(rows),)](
        blocks[0],
        blocks[parts // 2],
        blocks[-1],
        place_of_node,
        rows,
        width,
        places,
        graphs * places,
        heads,
        size,
        PARTS=parts,
        BLOCK=columns,
        num_warps=warps(columns),
    )
    return rows
