"""Sum, mean, maximum and softmax over contiguous segments of rows, such as the nodes of a graph."""

from staticgraph.kernels.segments.op import (
    segment_max,
    segment_max_reference,
    segment_softmax,
    segment_softmax_reference,
    segment_sum,
    segment_sum_reference,
)

__all__ = [
    "segment_max",
    "segment_max_reference",
    "segment_softmax",
    "segment_softmax_reference",
    "segment_sum",
    "segment_sum_reference",
]
