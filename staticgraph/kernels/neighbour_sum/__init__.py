"""Gather along edges, transform, and sum by destination, in one pass per direction."""

from staticgraph.kernels.neighbour_sum.op import each_edge, neighbour_sum, neighbour_sum_handed_on
from staticgraph.kernels.neighbour_sum.reference import neighbour_sum_reference

__all__ = ["each_edge", "neighbour_sum", "neighbour_sum_handed_on", "neighbour_sum_reference"]
