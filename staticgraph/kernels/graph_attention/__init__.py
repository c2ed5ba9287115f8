"""Attention within each graph over flat rows: one launch per direction, dropout included."""

from staticgraph.kernels.graph_attention.op import (
    draw_mask,
    graph_attention,
    graph_attention_reference,
)

__all__ = ["draw_mask", "graph_attention", "graph_attention_reference"]
