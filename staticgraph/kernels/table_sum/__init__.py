"""Several embedding tables looked up and summed at once."""

from staticgraph.kernels.table_sum.op import fold_codes, table_sum, table_sum_reference

__all__ = ["fold_codes", "table_sum", "table_sum_reference"]
