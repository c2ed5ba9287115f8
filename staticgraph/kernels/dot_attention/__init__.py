"""Dot-product attention over neighbours: a node's query with its neighbours' keys and values."""

from staticgraph.kernels.dot_attention.op import dot_attention, dot_attention_reference

__all__ = ["dot_attention", "dot_attention_reference"]
