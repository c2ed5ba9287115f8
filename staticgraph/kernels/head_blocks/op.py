"""``qkv_blocks`` and ``nodes_of_block`` as operators of torch; each is the other's derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.head_blocks import cpu


def _to_blocks(
    rows: Tensor, node_of_place: Tensor, graphs: int, heads: int, parts: int
) -> list[Tensor]:
    if rows.device.type == "cuda":
        from staticgraph.kernels.head_blocks import gpu

        return gpu.to_blocks(rows, node_of_place, graphs, heads, parts)
    width = rows.size(1) // parts
    wide = _numpy_has(rows)
    shape = (graphs, heads, len(node_of_place) // graphs, width // heads)
    blocks = [wide.new_empty(shape) for _ in range(parts)]
    for part, block in enumerate(blocks):
        cpu.to_block(wide.numpy(), part * width, node_of_place.numpy(), block.numpy())
    return [block.to(rows.dtype) for block in blocks]


def _to_rows(blocks: list[Tensor], place_of_node: Tensor) -> Tensor:
    if place_of_node.device.type == "cuda":
        from staticgraph.kernels.head_blocks import gpu

        return gpu.to_rows(blocks, place_of_node)
    wide = [_numpy_has(block) for block in blocks]
    width = blocks[0].size(1) * blocks[0].size(3)
    rows = wide[0].new_empty(len(place_of_node), len(blocks) * width)
    for part, block in enumerate(wide):
        cpu.to_rows(block.numpy(), place_of_node.numpy(), part * width, rows.numpy())
    return rows.to(blocks[0].dtype)


def _numpy_has(value: Tensor) -> Tensor:
    """Contiguous, and float32 for what NumPy does not have."""
    value = value.detach().contiguous()
    return value.float() if value.dtype == torch.bfloat16 else value


@torch.library.custom_op("staticgraph::qkv_blocks", mutates_args=())
def _qkv(
    rows: Tensor, node_of_place: Tensor, place_of_node: Tensor, graphs: int, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = _to_blocks(rows, node_of_place, graphs, heads, 3)
    return q, k, v


@torch.library.custom_op("staticgraph::qkv_blocks_backward", mutates_args=())
def _qkv_backward(q: Tensor, k: Tensor, v: Tensor, place_of_node: Tensor) -> Tensor:
    return _to_rows([q, k, v], place_of_node)


@torch.library.custom_op("staticgraph::nodes_of_block", mutates_args=())
def _nodes(block: Tensor, place_of_node: Tensor, node_of_place: Tensor) -> Tensor:
    return _to_rows([block], place_of_node)


@torch.library.custom_op("staticgraph::nodes_of_block_backward", mutates_args=())
def _nodes_backward(grad: Tensor, node_of_place: Tensor, graphs: int, heads: int) -> Tensor:
    return _to_blocks(grad, node_of_place, graphs, heads, 1)[0]


@_qkv.register_fake
def _(rows, node_of_place, place_of_node, graphs, heads):
    size = rows.size(1) // 3 // heads
    q, k, v = (
        rows.new_empty(graphs, heads, node_of_place.size(0) // graphs, size) for _ in range(3)
    )
    return q, k, v


@_qkv_backward.register_fake
def _(q, k, v, place_of_node):
    return q.new_empty(place_of_node.size(0), 3 * q.size(1) * q.size(3))


@_nodes.register_fake
def _(block, place_of_node, node_of_place):
    return block.new_empty(place_of_node.size(0), block.size(1) * block.size(3))


@_nodes_backward.register_fake
def _(grad, node_of_place, graphs, heads):
    return grad.new_empty(graphs, heads, node_of_place.size(0) // graphs, grad.size(1) // heads)


def _qkv_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[2])


def _qkv_derivative(ctx, q, k, v):
    (place_of_node,) = ctx.saved_tensors
    return _qkv_backward(q, k, v, place_of_node), None, None, None, None


def _nodes_setup(ctx, inputs, output):
    block, _, node_of_place = inputs
    ctx.save_for_backward(node_of_place)
    ctx.graphs, ctx.heads = block.size(0), block.size(1)


def _nodes_derivative(ctx, grad):
    (node_of_place,) = ctx.saved_tensors
    return _nodes_backward(grad, node_of_place, ctx.graphs, ctx.heads), None, None


_qkv.register_autograd(_qkv_derivative, setup_context=_qkv_setup)
_nodes.register_autograd(_nodes_derivative, setup_context=_nodes_setup)


def qkv_blocks(
    rows: Tensor, node_of_place: Tensor, place_of_node: Tensor, graphs: int, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of nodes, laid out for attention within each graph.

    Args:
        rows: ``[N, 3 * H * D]``, as one projection gives them.
        node_of_place: ``[G * M]`` int64, the node at each place, ``N`` where there is none.
        place_of_node: ``[N]`` int64, the inverse, ``G * M`` where there is none.
        graphs, heads: ``G`` and ``H``.

    Returns:
        Three ``[G, H, M, D]``, zero at places without a node; differentiable once.
    """
    return _qkv(rows, node_of_place, place_of_node, graphs, heads)


def nodes_of_block(block: Tensor, place_of_node: Tensor, node_of_place: Tensor) -> Tensor:
    """What attention gives, back at the nodes.

    Args:
        block: ``[G, H, M, D]``.
        place_of_node, node_of_place: as for :func:`qkv_blocks`.

    Returns:
        ``[N, H * D]``, zero at nodes without a place; differentiable once.
    """
    return _nodes(block, place_of_node, node_of_place)
