"""Attention within contiguous runs of rows, one run per graph, without blocks or padding in
between."""

from staticgraph.kernels.varlen_attention.op import varlen_attention

__all__ = ["varlen_attention"]
