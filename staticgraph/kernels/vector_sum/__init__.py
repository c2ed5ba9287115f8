"""Vectors that nodes give along edges, gated and turned into the edge's direction, added up."""

from staticgraph.kernels.vector_sum.op import VectorSums, vector_sum
from staticgraph.kernels.vector_sum.reference import vector_sum_reference

__all__ = ["VectorSums", "vector_sum", "vector_sum_reference"]
