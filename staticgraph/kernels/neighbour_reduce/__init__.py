"""A message of both ends and the edge, its activation, and several reductions of it at once."""

from staticgraph.kernels.neighbour_reduce.op import (
    ACTIVATIONS,
    REDUCTIONS,
    neighbour_reduce,
    neighbour_reduce_reference,
)

__all__ = ["ACTIVATIONS", "REDUCTIONS", "neighbour_reduce", "neighbour_reduce_reference"]
