"""Vector messages along edges: neighbours' vectors, gated, plus scaled edge directions, summed."""

from staticgraph.kernels.vector_sum.op import VectorSums, vector_sum, vector_sum_reference

__all__ = ["VectorSums", "vector_sum", "vector_sum_reference"]
