"""Node rows to blocks of attention heads and back, in one pass per direction."""

from staticgraph.kernels.head_blocks.op import nodes_of_blocks, qkv_blocks
from staticgraph.kernels.head_blocks.reference import (
    nodes_of_blocks_reference,
    qkv_blocks_reference,
)

__all__ = ["nodes_of_blocks", "nodes_of_blocks_reference", "qkv_blocks", "qkv_blocks_reference"]
