"""Node rows to blocks of heads and back in Triton: one program per place or per node; no
atomics."""

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
def head_blocks_to_block(
    values,
    node_of_place,
    first_block,
    second_block,
    third_block,
    nodes,
    width: tl.constexpr,
    places,
    heads: tl.constexpr,
    size: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: a place of a graph in its block, all heads, for each part; zeros if the place
    has no node."""
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
def head_blocks_to_rows(
    first_block,
    second_block,
    third_block,
    place_of_node,
    values,
    first_place,
    width: tl.constexpr,
    places,
    own_places,
    all_places,
    heads: tl.constexpr,
    size: tl.constexpr,
    PARTS: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: a node's row, all heads, for each part, from its place in a block.

    If ``FIRST``, nodes without a place in any block get zeros.
    """
    node = tl.program_id(0).to(tl.int64)
    f = tl.arange(0, BLOCK)
    anywhere = tl.load(place_of_node + node)
    place = anywhere - first_place
    own = (place >= 0) & (place < own_places)
    here = (f < width) & (own + 0 * f > 0)
    written = here
    if FIRST:  # the first block also clears the nodes that have no place in any block
        written = (f < width) & ((own | (anywhere >= all_places)) + 0 * f > 0)
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
        tl.store(values + (node * PARTS + part) * width + f, value, mask=written)


def to_blocks(
    rows: Tensor,
    node_of_place: Tensor,
    graphs: Sequence[int],
    widths: Sequence[int],
    heads: int,
    parts: int,
) -> list[Tensor]:
    """Returns ``parts`` tensors ``[G, H, M, D]`` per block from ``rows [N, parts * H * D]``; one
    launch per block."""
    width, rows = rows.size(1) // parts, rows.contiguous()
    columns, found, first = block_of(width), [], 0
    for count, places in zip(graphs, widths, strict=True):
        blocks = [rows.new_empty(count, heads, places, width // heads) for _ in range(parts)]
        head_blocks_to_block[(count * places,)](
            rows,
            node_of_place[first : first + count * places],
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
        found += blocks
        first += count * places
    return found


def to_rows(blocks: Sequence[Tensor], place_of_node: Tensor, parts: int) -> Tensor:
    """Returns the rows of blocks; one launch per block."""
    blocks = [value.contiguous() for value in blocks]
    _, heads, _, size = blocks[0].shape
    width = heads * size
    rows = blocks[0].new_empty(len(place_of_node), parts * width)
    columns, first = block_of(width), 0
    everything = sum(block.size(0) * block.size(2) for block in blocks[::parts])
    for at in range(0, len(blocks), parts):
        own = blocks[at : at + parts]
        graphs, _, places, _ = own[0].shape
        head_blocks_to_rows[(len(rows),)](
            own[0],
            own[parts // 2],
            own[-1],
            place_of_node,
            rows,
            first,
            width,
            places,
            graphs * places,
            everything,
            heads,
            size,
            PARTS=parts,
            FIRST=at == 0,
            BLOCK=columns,
            num_warps=warps(columns),
        )
        first += graphs * places
    return rows
