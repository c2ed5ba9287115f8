"""Rewrites reductions, softmax and counts over the rows of each graph to use their pointers.

The nodes of a graph are contiguous in memory, and so are its edges, which are sorted by destination
(both ends of an edge are in one graph): a reduction over them is a program whose edges are these
rows, one after another.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours import Builder, Result, neighbours_of
from staticgraph.kernels.neighbours.program import known
from staticgraph.nn.functions import softmaxed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    GATHER,
    SCATTER,
    Call,
    is_call,
    is_float,
    is_method,
    shape,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured

NAME = "pools"
# PyG's reductions that programs have, by their names there.
REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "min": "min", "max": "max"}
_POINTERS = {"batch": "ptr", "dst": "row_ptr", "src": "col_ptr"}


def counts(ptr: Tensor, dtype: torch.dtype) -> Tensor:
    """``[S + 1]`` -> ``[S]``: the number of rows of each segment."""
    return ptr.diff().to(dtype)


def edge_pointers(row_ptr: Tensor, ptr: Tensor) -> Tensor:
    """``[N + 1]`` and ``[G + 1]`` -> ``[G + 1]`` int32: the first edge of each graph."""
    return row_ptr.index_select(0, ptr.to(torch.int64)).to(torch.int32)


def narrowed(ptr: Tensor) -> Tensor:
    """``[G + 1]`` in int32, as loops on a CPU read it."""
    return ptr.to(torch.int32)


def rewrite(captured: Captured) -> None:
    """Rewrites every count, and every reduction and softmax over the rows of each graph."""
    if not captured.facts:
        return
    for node in captured.calls(SCATTER):
        if not _count(captured, node):
            _pool(captured, node)
    for node in captured.calls(softmaxed):
        _softmax(captured, node)


def rows_of_graphs(captured: Captured, index: Any) -> Edges | None:
    """Rows of graphs as edges into them; None unless the index is the graph of each node, or of
    each edge."""
    facts: Any = captured.facts
    order = None
    if captured.index(index) == "batch":
        rows, ptr = facts["batch"], facts["ptr"]
        if captured.target.device == "cpu":
            ptr = captured.once(("pointers",), narrowed, ptr)
    elif _is_of_edges(captured, index):
        pointers = facts["row_ptr"], facts["ptr"]
        rows, ptr = captured.end(1), captured.once(("edge pointers",), edge_pointers, *pointers)
        order = facts["order"]
    else:
        return None
    return Edges(*cast(Any, (rows, rows, ptr, ptr, ptr, order)))


def _is_of_edges(captured: Captured, index: Any) -> bool:
    """Whether an index is the graph of each edge."""
    return (
        is_call(index, GATHER)
        and captured.index(index.args[0]) == "batch"
        and captured.index(index.args[2]) in ("src", "dst")
    )


def _count(captured: Captured, node: Call) -> bool:
    """Rewrites ones summed by an index: a degree, or a graph's number of nodes."""
    rows, index, _, groups, reduce = node.args
    ones = is_method(rows, "new_ones") or is_call(rows, torch.ones, torch.ones_like)
    which = captured.index(index)
    size = captured.graphs if which == "batch" else captured.nodes
    if not ones or which is None or groups != size or reduce not in ("sum", "add"):
        return False
    fake = tensor(node)
    if fake is None or fake.dim() != 1:
        return False
    ptr = captured.facts[_POINTERS[which]]
    new = captured.once(("counts", which, fake.dtype), counts, ptr, fake.dtype)
    captured.replace(node, new, NAME)
    return True


def _pool(captured: Captured, node: Call) -> None:
    rows, index, dim, groups, reduce = node.args
    edges = rows_of_graphs(captured, index)
    if edges is None and groups == captured.graphs and captured.index(index) is None:
        captured.miss(NAME, node, "its index is not the batch's own")
    sizes = shape(rows)
    if edges is None or groups != captured.graphs or dim != 0 or not is_float(rows):
        return
    if reduce in REDUCTIONS and sizes is not None and sizes[:1] == shape(edges.dst):
        builder = Builder()
        result = Result(builder.operand("edge", sizes[1:]), REDUCTIONS[reduce])
        captured.replace(node, _program(captured, node, builder, result, [rows], edges), NAME)


def _softmax(captured: Captured, node: Call) -> None:
    """Rewrites a softmax over the rows of each graph: exponentials less the logarithm of their
    sum."""
    rows, index, groups, dim = node.args
    edges, sizes = rows_of_graphs(captured, index), shape(rows)
    if edges is None or groups != captured.graphs or dim != 0 or not sizes or not is_float(node):
        if captured.index(index) is None:
            captured.miss(NAME, node, "its index is not the batch's own")
        return
    first = Builder()
    result = Result(first.operand("edge", sizes[1:]), "logsumexp")
    whole = _program(captured, node, first, result, [rows], edges)
    builder = Builder()
    less = builder.point(
        "sub", builder.operand("edge", sizes[1:]), builder.operand("target", sizes[1:])
    )
    result = Result(builder.point("exp", less), "rows")
    captured.replace(node, _program(captured, node, builder, result, [rows, whole], edges), NAME)


def _program(
    captured: Captured, node: Call, builder: Builder, result: Result, operands: Any, edges: Edges
) -> Call:
    """Inserts a program of one result before a node."""
    key = known(builder.program([result]))
    new = captured.before(node, neighbours_of, key, operands, [], edges)
    return captured.item(node, new, 0, node)
