"""Node rows at both ends of the edges, and edge rows, added edge by edge."""

from staticgraph.kernels.edge_rows.op import edge_rows, edge_rows_reference, source_sum

__all__ = ["edge_rows", "edge_rows_reference", "source_sum"]
