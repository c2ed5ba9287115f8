"""Fused operators for graph networks, one folder per operator.

Each folder has ``cpu.py`` (the fastest CPU implementation measured), ``gpu.py`` (Triton, for CUDA)
and ``op.py`` (the definition in eager torch, and the registration: shapes and derivative). No
kernel uses atomic additions, so every result is bitwise deterministic (products of linear layers on
a CPU: on one machine, with one number of threads). Captured graphs are rewritten to them
(:mod:`staticgraph.rewrites`).
"""

from staticgraph.kernels.batch_norm import batch_norm
from staticgraph.kernels.dropout_sum import dropout_sum
from staticgraph.kernels.graph_attention import graph_attention
from staticgraph.kernels.linear import linear
from staticgraph.kernels.neighbours import neighbours
from staticgraph.kernels.table_sum import table_sum

__all__ = [
    "batch_norm",
    "dropout_sum",
    "graph_attention",
    "linear",
    "neighbours",
    "table_sum",
]
