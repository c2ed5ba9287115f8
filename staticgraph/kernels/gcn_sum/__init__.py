"""A GCN layer's sum over neighbours and the node itself, normalised by degrees in the same pass."""

from staticgraph.kernels.gcn_sum.op import (
    gcn_degrees,
    gcn_degrees_reference,
    gcn_sum,
    gcn_sum_reference,
)

__all__ = ["gcn_degrees", "gcn_degrees_reference", "gcn_sum", "gcn_sum_reference"]
