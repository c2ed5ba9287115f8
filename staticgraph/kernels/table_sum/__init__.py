"""Several embedding tables looked up and added at once."""

from staticgraph.kernels.table_sum.op import fold_codes, table_sum
from staticgraph.kernels.table_sum.reference import table_sum_reference

__all__ = ["fold_codes", "table_sum", "table_sum_reference"]
