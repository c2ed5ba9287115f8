"""The largest message from a node's neighbours, column by column."""

from staticgraph.kernels.neighbour_max.op import neighbour_max, neighbour_max_reference

__all__ = ["neighbour_max", "neighbour_max_reference"]
