"""The largest of rows that stand together, such as the nodes of a graph."""

from staticgraph.kernels.segment_max.op import segment_max
from staticgraph.kernels.segment_max.reference import segment_max_reference

__all__ = ["segment_max", "segment_max_reference"]
