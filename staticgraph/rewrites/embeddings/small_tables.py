"""Applies operations on rows of a small table to the table itself instead of to every edge.

Bonds have a few dozen combinations, whose sums of embeddings are one small table that edges read by
a code (:mod:`staticgraph.rewrites.embeddings.tables`). A linear layer or an activation of the rows
that are read, as in an edge encoder, is applied to the table's rows: 24 rows instead of thousands.

This runs on a CPU only: on CUDA a product of thousands of rows is one launch as well.
"""

from __future__ import annotations

from staticgraph.rewrites.captured_graph.canonical_ops import (
    ACTIVATIONS,
    GATHER,
    LINEAR,
    Call,
    is_call,
    is_float,
    shape,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype
from staticgraph.rewrites.embeddings.tables import FoldedLookup
from staticgraph.rewrites.neighbours.edge_terms import is_small

NAME = "small_tables"


def rewrite(captured: Captured) -> None:
    """Rewrites every linear layer and activation of such rows, one after another."""
    if not captured.facts or captured.target.device != "cpu":
        return
    for node in captured.calls(LINEAR, *ACTIVATIONS):
        _rewrite_node(captured, node)


def _rewrite_node(captured: Captured, node: Call) -> None:
    rows = node.args[0]
    if not is_call(rows, GATHER) or rows not in captured.folded or not is_small(captured, rows):
        return
    sizes = shape(node)
    if sizes is None or len(sizes) != 2 or not is_float(node):
        return
    if not same_dtype(node, *(operand for operand in node.args if tensor(operand) is not None)):
        return
    base, _, code = rows.args
    table = captured.before(node, node.target, base, *node.args[1:], **node.kwargs)
    new = captured.before(node, GATHER, table, 0, code)
    captured.folded[new] = FoldedLookup(code, None, table)
    captured.replace(node, new, NAME)
