"""Rewrites reductions, softmax and counts over contiguous rows to use their pointers.

The nodes of a graph, and the edges into a node, are contiguous in memory, so a reduction by the
batch vector or by destination is one pass over ``ptr`` or ``row_ptr``, without atomics.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.segments import segment_max, segment_softmax, segment_sum
from staticgraph.nn.functions import softmaxed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    SCATTER,
    Call,
    is_call,
    is_float,
    is_method,
    shape,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured

NAME = "segments"
_POINTERS = {"batch": "ptr", "dst": "row_ptr", "src": "col_ptr"}


def counts(ptr: Tensor, dtype: torch.dtype) -> Tensor:
    """``[S + 1]`` -> ``[S]``: the number of rows of each segment."""
    return ptr.diff().to(dtype)


def rewrite(captured: Captured) -> None:
    """Rewrites counts, reductions by the batch vector, and softmax by batch or destination."""
    for node in captured.calls(SCATTER, softmaxed):
        if is_call(node, softmaxed):
            _softmax(captured, node)
        elif not _count(captured, node):
            _pool(captured, node)


def _groups(captured: Captured, which: str | None) -> int | None:
    if which is None:
        return None
    return captured.graphs if which == "batch" else captured.nodes


def _count(captured: Captured, node: Call) -> bool:
    """Rewrites ones summed by an index: a degree, or a graph's number of nodes."""
    rows, index, _, groups, reduce = node.args
    ones = is_method(rows, "new_ones") or is_call(rows, torch.ones, torch.ones_like)
    which = captured.index(index)
    if (
        not ones
        or which is None
        or groups != _groups(captured, which)
        or reduce not in ("sum", "add")
    ):
        return False
    found = tensor(node)
    if found is None or found.dim() != 1:
        return False
    ptr = captured.facts[_POINTERS[which]]
    made = captured.once(("counts", which, found.dtype), counts, ptr, found.dtype)
    captured.replace(node, made, NAME)
    return True


def _pool(captured: Captured, node: Call) -> None:
    rows, index, dim, groups, reduce = node.args
    if captured.index(index) != "batch" or groups != captured.graphs or dim != 0:
        if captured.facts and groups == captured.graphs and captured.index(index) is None:
            captured.miss(NAME, node, "its index is not the batch's own")
        return
    if not is_float(rows) or reduce not in ("sum", "add", "mean", "max"):
        return
    if captured.differentiates(NAME, node):
        return
    made = reduced(captured, node, rows, captured.facts["ptr"], reduce)
    captured.replace(node, made, NAME)


def reduced(captured: Captured, node: Call, rows: Call, ptr: Call, reduce: str) -> Call:
    """Returns a sum, mean or max of contiguous rows ``[R, ...]``, inserted before a node.

    Args:
        captured: the graph.
        node: the node to be replaced by the result.
        rows: of known shape.
        ptr: ``[S + 1]``, the first row of each segment.
        reduce: ``sum``, ``add``, ``mean`` or ``max``.
    """
    rows = captured.reshaped(node, rows, (shape(rows) or (0,))[0], -1)
    if reduce == "max":
        made = captured.before(node, segment_max, rows, ptr)
    else:
        made = captured.before(node, segment_sum, rows, ptr, mean=reduce == "mean")
    return captured.reshaped(node, made, *(shape(node) or ()))


def _softmax(captured: Captured, node: Call) -> None:
    rows, index, groups, dim = node.args
    which = captured.index(index)
    found = shape(rows)
    if which not in ("batch", "dst") or groups != _groups(captured, which):
        if captured.facts:
            captured.miss(NAME, node, "its index is not the batch's own")
        return
    if dim != 0 or found is None or len(found) != 2 or node in captured.differentiated:
        return
    made = captured.before(node, segment_softmax, rows, captured.facts[_POINTERS[which]])
    captured.replace(node, made, NAME)
