"""Attention over neighbours: softmax over the edges into a node, and the weighted sum of rows."""

from staticgraph.kernels.neighbour_attention.op import (
    neighbour_attention,
    neighbour_attention_reference,
)

__all__ = ["neighbour_attention", "neighbour_attention_reference"]
