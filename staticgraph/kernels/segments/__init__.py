"""Sum, mean, maximum and softmax over contiguous segments of rows, such as the nodes of a graph."""

from staticgraph.kernels.segments.op import segment_max, segment_softmax, segment_sum

__all__ = ["segment_max", "segment_softmax", "segment_sum"]
