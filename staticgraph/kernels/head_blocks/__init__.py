"""Rows of nodes <-> blocks of attention heads, in one pass each way."""

from staticgraph.kernels.head_blocks.op import nodes_of_blocks, qkv_blocks
from staticgraph.kernels.head_blocks.reference import (
    nodes_of_blocks_reference,
    qkv_blocks_reference,
)

__all__ = ["nodes_of_blocks", "nodes_of_blocks_reference", "qkv_blocks", "qkv_blocks_reference"]
