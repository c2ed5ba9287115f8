"""Gather along edges, transform, and add up by destination, in one pass each way."""

from staticgraph.kernels.neighbour_sum.op import each_edge, neighbour_sum, neighbour_sum_handed_on
from staticgraph.kernels.neighbour_sum.reference import neighbour_sum_reference

__all__ = ["each_edge", "neighbour_sum", "neighbour_sum_handed_on", "neighbour_sum_reference"]
