"""Attention over neighbours: softmax over the edges into a node, and the weighted sum of rows."""

from staticgraph.kernels.neighbour_attention.op import neighbour_attention

__all__ = ["neighbour_attention"]
