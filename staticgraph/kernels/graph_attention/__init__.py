"""Attention among the nodes of each graph over flat rows: one launch each way, dropout included."""

from staticgraph.kernels.graph_attention.op import graph_attention, kept
from staticgraph.kernels.graph_attention.reference import graph_attention_reference

__all__ = ["graph_attention", "graph_attention_reference", "kept"]
