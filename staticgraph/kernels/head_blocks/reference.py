"""Reference for :func:`qkv_blocks` and :func:`nodes_of_blocks` in eager torch.

Both are gathers, with an extra row of zeros for places without a node and nodes without a place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def qkv_blocks_reference(
    rows: Tensor, node_of_place: Tensor, shapes: Sequence[tuple[int, int]], heads: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Computes ``qkv_blocks``; differentiable.

    Arguments as in :func:`staticgraph.kernels.qkv_blocks`.
    """
    zero = rows.new_zeros(1, rows.size(1))
    places = torch.cat([rows, zero]).index_select(0, node_of_place)
    found = []
    for (graphs, width), block in zip(
        shapes, places.split([graphs * width for graphs, width in shapes]), strict=True
    ):
        parts = block.view(graphs, width, 3, heads, -1).permute(2, 0, 3, 1, 4)
        found.append((parts[0], parts[1], parts[2]))
    return found


def nodes_of_blocks_reference(blocks: Sequence[Tensor], place_of_node: Tensor) -> Tensor:
    """Computes ``nodes_of_blocks``; differentiable.

    Arguments as in :func:`staticgraph.kernels.nodes_of_blocks`.
    """
    columns = blocks[0].size(1) * blocks[0].size(3)
    rows = torch.cat([block.transpose(1, 2).reshape(-1, columns) for block in blocks])
    return torch.cat([rows, rows.new_zeros(1, columns)]).index_select(0, place_of_node)
