"""Launches every Triton kernel of the package on CPU tensors, for :mod:`support.compiled`.

Rows have 300 columns or 5 heads of 60, which are no powers of two, unlike every block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm import gpu as norm
from staticgraph.kernels.batch_norm import small as small_norm
from staticgraph.kernels.collate import gpu as collation
from staticgraph.kernels.dot_attention import gpu as dots
from staticgraph.kernels.dropout_sum import gpu as dropout
from staticgraph.kernels.gcn_sum import gpu as gcn
from staticgraph.kernels.graph_attention import gpu as nodes_attention
from staticgraph.kernels.linear import gpu as dense
from staticgraph.kernels.linear import small
from staticgraph.kernels.linear_statistics import gpu as measured
from staticgraph.kernels.neighbour_attention import gpu as attention
from staticgraph.kernels.neighbour_max import gpu as largest
from staticgraph.kernels.neighbour_sum import gpu as neighbour
from staticgraph.kernels.pair_score import gpu as pair
from staticgraph.kernels.segments import gpu as segments
from staticgraph.kernels.table_sum import gpu as table
from support.collated import collated, layout_for, odd_graphs

WIDTH, NODES, EDGES, HEADS = 300, 23, 61, 5
ENDS = torch.zeros(EDGES, dtype=torch.int64)
PTR = torch.zeros(NODES + 1, dtype=torch.int32)
ORDER = torch.zeros(EDGES, dtype=torch.int32)
INDEX = torch.zeros(NODES, 3, dtype=torch.int64)
OFFSETS = torch.zeros(4, dtype=torch.int64)
COUNT = torch.tensor(NODES)
PER_EDGE = torch.ones(EDGES)
ONES, SEED = torch.ones(WIDTH), torch.tensor([1])
SCORES, OWN = torch.zeros(EDGES, HEADS), torch.zeros(NODES, HEADS)
PAIR = torch.zeros(HEADS, NODES, 2)
BY = torch.zeros(HEADS, WIDTH // HEADS)
PLACES = torch.zeros(NODES, dtype=torch.int64)

# From x [23, 300] and e [61, 300], runs all launches of a kernel's module.
BOTH_WAYS = {
    "neighbour_sum": lambda x, e: (
        neighbour.forward(x, e, None, ENDS, PTR, None, PER_EDGE, "relu_add", False),
        neighbour.backward(
            x, x, e, None, ENDS, PTR, PTR, ORDER, None, PER_EDGE, x, e, "relu_add", False, False
        ),
    ),
    "neighbour_sum of a table": lambda x, e: (
        neighbour.forward(x, x, ENDS, ENDS, PTR, ONES, None, "multiply", True),
        neighbour.backward(
            x, x, x, ENDS, ENDS, PTR, PTR, ORDER, ONES, None, None, None, "multiply", True, False
        ),
    ),
    "neighbour_sum of a table, edge by edge": lambda x, e: neighbour.backward(
        x, x, x, ENDS, ENDS, PTR, PTR, ORDER, ONES, None, x, e.float(), "relu_add", False, True
    ),
    "table_sum": lambda x, e: (
        table.forward(INDEX, OFFSETS, x),
        table.backward(x, INDEX, OFFSETS, 77),
    ),
    "batch_norm": lambda x, e: (
        norm.forward(x, x, x, ONES, ONES, COUNT, ONES, ONES, SEED, 0.1, 1e-5, True),
        norm.backward(x, x, ONES, ONES, ONES, ONES, COUNT, x, 1e-5, True),
    ),
    "linear": lambda x, e: dense.masked_sums(x, x),
    "dropout_sum": lambda x, e: dropout.fill(x, x, x, SEED, 3, 0.5),
    "segment_sum": lambda x, e: (
        segments.sum_forward(x, PTR, True),
        segments.sum_backward(x, PTR, 23, True),
    ),
    "segment_max": lambda x, e: (segments.max_forward(x, PTR), segments.max_backward(x, x, x, PTR)),
    "segment_softmax": lambda x, e: (
        segments.softmax_forward(x, PTR),
        segments.softmax_backward(x, x, PTR),
    ),
    "neighbour_max": lambda x, e: (
        largest.forward(x, e, ENDS, PTR),
        largest.backward(x, x, e, x, ENDS, ENDS, PTR, PTR, ORDER),
    ),
    "gcn_sum": lambda x, e: (
        gcn.forward(x, ONES, ONES, ONES, ONES, ENDS, PTR, True, x.dtype),
        gcn.backward(x, ONES, ONES, ONES, ENDS, PTR, ORDER, True, x.dtype),
    ),
    "neighbour_attention": lambda x, e: (
        attention.forward(x, PAIR, SCORES, OWN, ENDS, PTR, HEADS, 0.2, True, x.dtype),
        attention.backward(
            x, x, x, SCORES, OWN, PAIR, SCORES, OWN, ENDS, PTR, PTR, ORDER, HEADS, 0.2, True
        ),
    ),
    "pair_score": lambda x, e: (
        pair.forward(x, x, BY.to(x.dtype), e, x, ENDS, PTR, 0.2),
        pair.backward(SCORES, OWN, x, x, BY.to(x.dtype), e, x, ENDS, ENDS, PTR, PTR, ORDER, 0.2),
    ),
    "dot_attention": lambda x, e: (
        dots.forward(x, x, x, e, None, ENDS, PTR, HEADS, 0.13, True, True, x.dtype),
        dots.backward(
            *(x, x, SCORES, x, x, x, e, None),
            *(ENDS, ENDS, PTR, PTR, ORDER, HEADS, 0.13, True, True),
        ),
    ),
}
STARTS, SQUARE = torch.tensor([0, 9, 9, 20], dtype=torch.int32), torch.zeros(WIDTH, WIDTH)


def everything(x: Tensor, e: Tensor) -> None:
    """Launches every kernel of the package."""
    for call in BOTH_WAYS.values():
        call(x, e)
    store = odd_graphs()
    collated(collation.collate, store.to("cpu"), [2, 1, 4, 0], layout_for(store, [2, 1, 4, 0]))
    gcn.degrees(ENDS, PTR, PER_EDGE, 2.0, True, x)
    root = torch.ones(NODES, dtype=torch.promote_types(x.dtype, torch.float32))
    gcn.degrees_backward(root, root, root, ENDS, PTR, True)
    gcn.weights_backward(x, x, root, root, PER_EDGE, ENDS, ENDS, PTR, PTR, ORDER, True)
    table.codes(INDEX, OFFSETS)
    small_norm.forward(x, x, x, ONES, ONES, COUNT, ONES, ONES, SEED, 0.1, 1e-5, True)
    small_norm.backward(x, x, ONES, ONES, ONES, ONES, COUNT, x, 1e-5, True)
    norm.forward(x, None, None, ONES, ONES, COUNT, ONES, ONES, SEED, None, 1e-5, True)
    if x.dtype != torch.float64:
        rows = x.repeat(1, 3)
        out, lse = nodes_attention.forward(rows, STARTS, SEED, HEADS, 222, 3, 0.5)
        nodes_attention.backward(x, rows, out, lse, STARTS, SEED, HEADS, 222, 3, 0.5)
        many = x.repeat(100, 1)  # more than one chunk
        small.forward(many, SQUARE, ONES, True, x.dtype)
        small.backward(many, many, SQUARE, many, many)
        measured.forward(many, SQUARE, ONES, COUNT, True, x.dtype)
