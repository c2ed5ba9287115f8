"""Rewrites edges pooled by their graph: ``scatter(scores, batch[edge_index[0]])``.

Edges are sorted by destination, so the edges of a graph are contiguous: their pointers are the row
pointers at the first node of each graph. Both ends of an edge are in the same graph.

Without a size, such an index looks by its length like one of nodes, and where no values are
available only the captured graph can tell: :func:`check` refuses nodes with the wrong size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.errors import NotStatic
from staticgraph.kernels.segments import segment_softmax
from staticgraph.nn.context.batch_context import EDGE_GRAPHS
from staticgraph.nn.functions import softmaxed
from staticgraph.rewrites.aggregation.segments import NAME, reduced
from staticgraph.rewrites.captured_graph.canonical_ops import (
    GATHER,
    SCATTER,
    Call,
    is_call,
    is_float,
    shape,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.captured_graph.user_code import line_of


def edge_pointers(row_ptr: Tensor, ptr: Tensor) -> Tensor:
    """``[N + 1]`` and ``[G + 1]`` -> ``[G + 1]``: the first edge of each graph."""
    return row_ptr.index_select(0, ptr.to(torch.int64))


def check(captured: Captured) -> None:
    """Refuses an index of graphs that was taken for one of nodes.

    Raises:
        NotStatic: there is one.
    """
    for node in captured.graph.nodes:
        place = {SCATTER: 3, softmaxed: 2}.get(node.target) if node.op == "call_function" else None
        if place is None or not _is_of_edges(captured, node.args[1]):
            continue
        if node.args[place] == captured.nodes:
            line, layer = line_of(node)
            where = f"{layer or 'the model'}, {line}"
            raise NotStatic(f"{where}: {EDGE_GRAPHS}")


def rewrite(captured: Captured) -> None:
    """Rewrites every sum, mean, max and softmax over the edges of each graph."""
    for node in captured.calls(SCATTER, softmaxed):
        ours = _is_of_edges(captured, node.args[1]) and is_float(node)
        if ours and node not in captured.differentiated:
            _at(captured, node)


def _is_of_edges(captured: Captured, index: Any) -> bool:
    """Whether an index is the graph of each edge."""
    return (
        is_call(index, GATHER)
        and captured.index(index.args[0]) == "batch"
        and captured.index(index.args[2]) in ("src", "dst")
    )


def _at(captured: Captured, node: Call) -> None:
    rows = node.args[0]
    sizes = shape(rows)
    if sizes is None or sizes[0] != captured.edges:
        return
    facts = captured.facts
    ptr = captured.once(("edge pointers",), edge_pointers, facts["row_ptr"], facts["ptr"])
    if is_call(node, softmaxed):
        if node.args[2:] == (captured.graphs, 0) and len(sizes) == 2:
            captured.replace(node, captured.before(node, segment_softmax, rows, ptr), NAME)
        return
    dim, groups, reduce = node.args[2:]
    if dim != 0 or groups != captured.graphs or reduce not in ("sum", "add", "mean", "max"):
        return
    made = reduced(captured, node, rows, ptr, reduce)
    captured.replace(node, made, NAME)
