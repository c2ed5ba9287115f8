"""Several embedding tables looked up and added at once."""

from staticgraph.kernels.table_sum.op import table_sum
from staticgraph.kernels.table_sum.reference import table_sum_reference

__all__ = ["table_sum", "table_sum_reference"]
