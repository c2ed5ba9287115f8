"""Neighbours' rows times one matrix per edge, summed by destination, in one pass per direction."""

from staticgraph.kernels.edge_matrix_sum.op import (
    edge_matrix_sum,
    edge_matrix_sum_handed_on,
    edge_matrix_sum_reference,
)

__all__ = ["edge_matrix_sum", "edge_matrix_sum_handed_on", "edge_matrix_sum_reference"]
