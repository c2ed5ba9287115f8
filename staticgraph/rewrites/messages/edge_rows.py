"""Rewrites gathers of nodes' rows by edges, and of graphs' rows by nodes: ``edge_rows``.

Examples are ``x[src] - x[dst]``, ``mlp(cat([x[dst], x[src], e]))`` and ``virtual[batch]``: messages
that no other rewrite knows begin with a gather, whose backward torch sums row by row. Edges are
sorted by destination and nodes by graph, so it is one pass. Rows that are gathered and then
multiplied by a weight are multiplied first, node by node.

This runs on a CPU only: on CUDA torch's own gathers are fused with the operations around them.
"""

from __future__ import annotations

from typing import Any, cast

from staticgraph.kernels.edge_rows import edge_rows
from staticgraph.kernels.edges import Edges
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    GATHER,
    LINEAR,
    SUB,
    Call,
    is_call,
    is_float,
    shape,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype
from staticgraph.rewrites.messages.edge_operands import Operands, operands
from staticgraph.rewrites.messages.edge_terms import terms_of
from staticgraph.rewrites.passes.eliminate import drop_unread

NAME = "edge_rows"


def rewrite(captured: Captured) -> None:
    """Rewrites sums and products of gathered rows, the longest first, then remaining gathers."""
    if not captured.facts or captured.target.device != "cpu":
        return
    for node in reversed(list(captured.graph.nodes)):
        if is_call(node, ADD, SUB, LINEAR) and node.users and _trains(captured, node):
            _sum(captured, node)
    drop_unread(captured.graph)
    for node in captured.calls(GATHER):
        if _trains(captured, node):
            _gather(captured, node)


def _trains(captured: Captured, node: Call) -> bool:
    """Whether a node needs a gradient, but no second one; without a gradient nothing is gained."""
    found = tensor(node)
    wanted = found is not None and found.requires_grad
    return wanted and is_float(node) and node not in captured.differentiated


def _sum(captured: Captured, node: Call) -> None:
    found = shape(node)
    if found is None or len(found) != 2 or found[0] != captured.edges:
        return
    terms = terms_of(captured, node)
    if all(term.rows.place == "edge" for term in terms.terms):
        return
    given = operands(captured, node, [terms])
    if same_dtype(given.source, given.target, given.edge, node):
        _put(captured, node, given)


def _put(captured: Captured, node: Call, given: Operands) -> None:
    options = {} if given.code is None else {"code": given.code}
    new = captured.before(node, edge_rows, *given[:3], captured.batch_edges, **options)
    captured.replace(node, new, NAME)


def _gather(captured: Captured, node: Call) -> None:
    base, _, index = node.args
    which = captured.index(index)
    found = shape(base)
    if which is None or found is None or node in captured.folded or len(found) not in (1, 2, 3):
        return
    if found[0] != (captured.graphs if which == "batch" else captured.nodes):
        return
    rows = captured.reshaped(node, base, found[0], -1)
    if which == "batch":
        batch, ptr = (cast(Any, captured.facts[name]) for name in ("batch", "ptr"))
        new = captured.before(node, edge_rows, None, rows, None, Edges(batch, batch, ptr, ptr, ptr))
    else:
        ends = (rows, None) if which == "src" else (None, rows)
        new = captured.before(node, edge_rows, *ends, None, captured.batch_edges)
    new = captured.reshaped(node, new, *(shape(node) or ()))
    captured.replace(node, new, NAME)
