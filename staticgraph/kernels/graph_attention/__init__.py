"""Attention within each graph over flat rows: one launch per direction, dropout included."""

from staticgraph.kernels.graph_attention.op import graph_attention, kept
from staticgraph.kernels.graph_attention.reference import graph_attention_reference

__all__ = ["graph_attention", "graph_attention_reference", "kept"]
