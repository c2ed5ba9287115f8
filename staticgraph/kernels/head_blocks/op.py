"""``qkv_blocks`` and ``nodes_of_blocks`` as torch operators; each is the other's derivative.

A bucket's attention has one block, or a few by graph size; the places of the blocks follow one
another in ``node_of_place``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from staticgraph.kernels.head_blocks import cpu
from staticgraph.kernels.register import differentiable_once, operator

# Dtypes that NumPy or numba does not support.
HALVES = (torch.bfloat16, torch.float16)


def _to_blocks_on_cpu(
    rows: Tensor,
    node_of_place: Tensor,
    graphs: Sequence[int],
    widths: Sequence[int],
    heads: int,
    parts: int,
) -> list[Tensor]:
    dtype, columns = rows.dtype, rows.size(1) // parts
    rows, blocks, first = _numpy_has(rows), [], 0
    for count, width in zip(graphs, widths, strict=True):
        places = node_of_place[first : first + count * width]
        first += count * width
        for part in range(parts):
            block = rows.new_empty(count, heads, width, columns // heads)
            cpu.to_block(
                rows.numpy(),
                part * columns,
                places.numpy(),
                block.numpy(),
            )
            blocks.append(block.to(dtype))
    return blocks


def _to_rows_on_cpu(
    blocks: Sequence[Tensor], place_of_node: Tensor, node_of_place: Tensor, parts: int
) -> Tensor:
    dtype, columns = blocks[0].dtype, blocks[0].size(1) * blocks[0].size(3)
    of_numpy = torch.float32 if dtype in HALVES else dtype
    rows = blocks[0].new_zeros(len(place_of_node), parts * columns, dtype=of_numpy)
    first = 0
    for at, block in enumerate(blocks):
        count = block.size(0) * block.size(2)
        cpu.to_rows(
            _numpy_has(block).numpy(),  # one copy at a time: attention gradients are strided
            node_of_place[first : first + count].numpy(),
            at % parts * columns,
            rows.numpy(),
        )
        first += count * (at % parts == parts - 1)
    return rows.to(dtype)


def _to_blocks_on_cuda(*arguments):
    from staticgraph.kernels.head_blocks import gpu

    return gpu.to_blocks(*arguments)


def _to_rows_on_cuda(blocks, place_of_node, node_of_place, parts):
    from staticgraph.kernels.head_blocks import gpu

    return gpu.to_rows(blocks, place_of_node, parts)


def _numpy_has(value: Tensor) -> Tensor:
    """Returns the tensor contiguous, in float32 if NumPy or numba does not support its dtype."""
    value = value.contiguous()
    return value.float() if value.dtype in HALVES else value


def _fake_blocks(rows, node_of_place, graphs, widths, heads, parts):
    size = rows.size(1) // parts // heads
    return [
        rows.new_empty(count, heads, width, size)
        for count, width in zip(graphs, widths, strict=True)
        for _ in range(parts)
    ]


def _fake_rows(blocks, place_of_node, node_of_place, parts):
    columns = blocks[0].size(1) * blocks[0].size(3)
    return blocks[0].new_empty(place_of_node.size(0), parts * columns)


_blocks = operator(
    "head_blocks(Tensor rows, Tensor node_of_place, SymInt[] graphs, SymInt[] widths, "
    "SymInt heads, SymInt parts) -> Tensor[]",
    cpu=_to_blocks_on_cpu,
    cuda=_to_blocks_on_cuda,
    fake=_fake_blocks,
)
_rows = operator(
    "head_rows(Tensor[] blocks, Tensor place_of_node, Tensor node_of_place, SymInt parts) "
    "-> Tensor",
    cpu=_to_rows_on_cpu,
    cuda=_to_rows_on_cuda,
    fake=_fake_rows,
)


class RowsToBlocks(torch.autograd.Function):
    """Autograd function from rows to blocks; backward is :func:`_rows`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        """Returns blocks ``[graphs, H, width, C]`` of rows ``[N, parts * H * C]``, one per width
        and part."""
        rows, node_of_place, place_of_node, graphs, widths, heads, ctx.parts = inputs
        ctx.save_for_backward(place_of_node, node_of_place)
        return tuple(_blocks(rows, node_of_place, graphs, widths, heads, ctx.parts))

    @staticmethod
    @differentiable_once("head_blocks")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradient of the rows, by the inverse operator."""
        return _rows(list(grads), *ctx.saved_tensors, ctx.parts), *(None,) * 6


class BlocksToRows(torch.autograd.Function):
    """Autograd function from blocks of one part to rows; backward is :func:`_blocks`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """Returns rows ``[N, H * C]`` of blocks ``[graphs, H, width, C]``, one block per width."""
        place_of_node, node_of_place, *blocks = inputs
        ctx.save_for_backward(node_of_place)
        ctx.graphs = [block.size(0) for block in blocks]
        ctx.widths = [block.size(2) for block in blocks]
        ctx.heads = blocks[0].size(1)
        return _rows(blocks, place_of_node, node_of_place, 1)

    @staticmethod
    @differentiable_once("head_rows")
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of the blocks, by the inverse operator."""
        (node_of_place,) = ctx.saved_tensors
        return None, None, *_blocks(grads[0], node_of_place, ctx.graphs, ctx.widths, ctx.heads, 1)


def qkv_blocks(
    rows: Tensor,
    node_of_place: Tensor,
    place_of_node: Tensor,
    shapes: Sequence[tuple[int, int]],
    heads: int,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Lays out queries, keys and values of nodes for attention within each graph.

    Args:
        rows: ``[N, 3 * H * D]``, from one projection.
        node_of_place: ``[P]`` int64, the node at each place, ``N`` where there is none; block after
            block.
        place_of_node: ``[N]`` int64, the inverse, ``P`` where there is none.
        shapes: ``(G, M)`` of each block; the products ``G * M`` add up to ``P``.
        heads: ``H``.

    Returns:
        For each block three tensors ``[G, H, M, D]``, zero at places without a node; differentiable
        once.
    """
    graphs, widths = [list(each) for each in zip(*shapes, strict=True)]
    found = RowsToBlocks.apply(
        rows.contiguous(), node_of_place, place_of_node, graphs, widths, heads, 3
    )
    return [(found[i], found[i + 1], found[i + 2]) for i in range(0, len(found), 3)]


def nodes_of_blocks(
    blocks: Sequence[Tensor], place_of_node: Tensor, node_of_place: Tensor
) -> Tensor:
    """Moves the output of attention from blocks back to node rows.

    Args:
        blocks: ``[G, H, M, D]`` each.
        place_of_node, node_of_place: as for :func:`qkv_blocks`.

    Returns:
        ``[N, H * D]``, zero at nodes without a place; differentiable once.
    """
    return BlocksToRows.apply(place_of_node, node_of_place, *blocks)
