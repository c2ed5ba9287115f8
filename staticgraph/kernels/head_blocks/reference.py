"""What :func:`qkv_blocks` and :func:`nodes_of_block` mean, in eager torch: gathers with a row of
zeros for places, and nodes, that have no partner."""

from __future__ import annotations

import torch
from torch import Tensor


def qkv_blocks_reference(
    rows: Tensor, node_of_place: Tensor, graphs: int, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiable. Args: as :func:`staticgraph.kernels.qkv_blocks`."""
    zero = rows.new_zeros(1, rows.size(1))
    block = torch.cat([rows, zero]).index_select(0, node_of_place)
    parts = block.view(graphs, len(node_of_place) // graphs, 3, heads, -1).permute(2, 0, 3, 1, 4)
    return parts[0], parts[1], parts[2]


def nodes_of_block_reference(block: Tensor, place_of_node: Tensor) -> Tensor:
    """Differentiable. Args: as :func:`staticgraph.kernels.nodes_of_block`."""
    rows = block.transpose(1, 2).reshape(-1, block.size(1) * block.size(3))
    return torch.cat([rows, rows.new_zeros(1, rows.size(1))]).index_select(0, place_of_node)
