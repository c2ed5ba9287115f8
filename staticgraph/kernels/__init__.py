"""Fused operators for graph networks, one folder per operator.

Each folder has ``cpu.py`` (the fastest CPU implementation measured), ``gpu.py`` (Triton, for CUDA)
and ``op.py`` (the definition in eager torch, and the registration: shapes and derivative). No
kernel uses atomic additions, so every result is bitwise deterministic (products of linear layers on
a CPU: on one machine, with one number of threads). Captured graphs are rewritten to them
(:mod:`staticgraph.rewrites`).
"""

from staticgraph.kernels.batch_norm import batch_norm
from staticgraph.kernels.dot_attention import dot_attention
from staticgraph.kernels.dropout_sum import dropout_sum
from staticgraph.kernels.gcn_sum import gcn_degrees, gcn_sum
from staticgraph.kernels.graph_attention import graph_attention
from staticgraph.kernels.linear import linear
from staticgraph.kernels.neighbour_attention import neighbour_attention
from staticgraph.kernels.neighbour_sum import neighbour_sum
from staticgraph.kernels.neighbours import neighbours
from staticgraph.kernels.pair_score import pair_score
from staticgraph.kernels.segments import segment_max, segment_softmax, segment_sum
from staticgraph.kernels.table_sum import table_sum

__all__ = [
    "batch_norm",
    "dot_attention",
    "dropout_sum",
    "gcn_degrees",
    "gcn_sum",
    "graph_attention",
    "linear",
    "neighbour_attention",
    "neighbour_sum",
    "neighbours",
    "pair_score",
    "segment_max",
    "segment_softmax",
    "segment_sum",
    "table_sum",
]
