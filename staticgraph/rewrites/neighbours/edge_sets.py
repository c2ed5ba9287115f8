"""Edges that are not the batch's own: found by a search, picked or added by a layer, read from a
field, or the batch's read against their direction.

A message needs two indices of one length: one by which rows are gathered, and one by which what is
computed of them is reduced to as many rows. Where a graph has such a pair, the order of edges at
either end is found once per step (:func:`staticgraph.kernels.edges.order_edges`), and messages over
them are programs like those over the batch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from staticgraph.nn.functions import softmaxed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    GATHER,
    SCATTER,
    Call,
    is_call,
    is_float,
    shape,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured, EdgeSet, index_key


def edge_sets(captured: Captured) -> Iterator[EdgeSet]:
    """Yields the edges of every reduction that is left and can be one over edges, each once."""
    seen: set[Any] = set()
    for node in captured.calls(SCATTER, softmaxed):
        if is_call(node, SCATTER):
            _, target, dim, nodes, reduce = node.args
        else:
            _, target, nodes, dim = node.args
            reduce = "softmax"
        which = captured.index(target)
        by_source = which == "src" and reduce not in ("sum", "add")
        if dim != 0 or not is_float(node) or not (which is None or by_source):
            continue
        source = _source_of(captured, target)
        if source is None or (key := (index_key(source[0]), index_key(target))) in seen:
            continue
        seen.add(key)
        yield EdgeSet(*key, source[1], nodes, (shape(target) or (0,))[0], by_source)


def _source_of(captured: Captured, target: Call) -> tuple[Call, int] | None:
    """The index by which rows are gathered for edges into ``target``, and of how many: the other
    row of the same matrix if there is one, or else the one that is read most."""
    sizes, key = shape(target), index_key(target)
    if sizes is None or len(sizes) != 1 or not _is_index(target):
        return None
    sources: dict[Any, tuple[Call, int]] = {}
    reads: dict[Any, int] = {}
    for node in captured.calls(GATHER):
        rows, _, index = node.args
        other = index_key(index)
        if other == key or shape(index) != sizes or not _is_index(index) or not is_float(node):
            continue
        sources.setdefault(other, (index, (shape(rows) or (0,))[0]))
        beside = isinstance(other, tuple) and isinstance(key, tuple) and other[0] is key[0]
        reads[other] = reads.get(other, 0) + 1 + beside * len(captured.graph.nodes)
    return sources[max(reads, key=reads.__getitem__)] if reads else None


def _is_index(node: Call) -> bool:
    """Whether a node is an index as operators take it, which nothing writes to."""
    fake = tensor(node)
    return fake is not None and fake.dtype == torch.int64 and not node.meta.get("written")
