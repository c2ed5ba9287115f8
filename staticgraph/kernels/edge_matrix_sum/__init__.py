"""Neighbours' rows times a matrix an edge, added up by destination, in one pass each way."""

from staticgraph.kernels.edge_matrix_sum.op import edge_matrix_sum, edge_matrix_sum_handed_on
from staticgraph.kernels.edge_matrix_sum.reference import edge_matrix_sum_reference

__all__ = ["edge_matrix_sum", "edge_matrix_sum_handed_on", "edge_matrix_sum_reference"]
