"""Attention within each graph over flat rows: one launch per direction, dropout included."""

from staticgraph.kernels.graph_attention.op import graph_attention, graph_attention_reference, kept

__all__ = ["graph_attention", "graph_attention_reference", "kept"]
