"""Attention within consecutive runs of rows, one run a graph, without blocks or padding between."""

from staticgraph.kernels.varlen_attention.op import varlen_attention

__all__ = ["varlen_attention"]
