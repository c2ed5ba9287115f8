"""Softmax over rows that stand together, such as the edges into a node or the nodes of a graph."""

from staticgraph.kernels.segment_softmax.op import segment_softmax
from staticgraph.kernels.segment_softmax.reference import segment_softmax_reference

__all__ = ["segment_softmax", "segment_softmax_reference"]
