"""A few numbers per node and head: dot products of the node's rows with vectors of each head."""

from staticgraph.kernels.head_products.op import head_products
from staticgraph.kernels.head_products.reference import head_products_reference

__all__ = ["head_products", "head_products_reference"]
