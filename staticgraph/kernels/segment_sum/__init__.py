"""Sums and means over rows that stand together, such as the nodes of a graph."""

from staticgraph.kernels.segment_sum.op import segment_sum
from staticgraph.kernels.segment_sum.reference import segment_sum_reference

__all__ = ["segment_sum", "segment_sum_reference"]
