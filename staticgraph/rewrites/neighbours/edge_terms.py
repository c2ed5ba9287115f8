"""Reads the messages of all edges as sums of rows of nodes, of a small table, and of edges.

``x[dst]``, ``x[src] - x[dst]``, ``x[src] + e`` are such sums, and so is a linear layer of
``cat([x[dst], x[src], e])``: its product splits into one per node at each end and one per edge,
which take a half or a third of the arithmetic and need no concatenation. Layers with towers (PNA)
compute one such product per tower and stack them; then the towers are concatenated in the columns.

Terms are only read here, and inserted into the graph later, once they are known to be needed
(:mod:`staticgraph.rewrites.neighbours.edge_operands`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    GATHER,
    LINEAR,
    SELECT,
    SUB,
    Call,
    argument,
    dtype,
    is_call,
    is_method,
    shape,
    tensor,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured

# A table that edges read is small if it has at most 1 / FEWER as many rows as there are edges.
FEWER = 4
MOST_DEPTH = 12
PLACES = ("src", "dst", "edge")


class UngatheredRows(NamedTuple):
    """Two-dimensional rows before they are gathered.

    Attributes:
        base: ``[N, K]``, ``[E, K]`` or ``[V, K]``.
        place: ``src``, ``dst`` or ``edge``: by which end edges read them, or their own rows.
        code: the index by which edges read a small table; None for other rows.
    """

    base: Call
    place: str
    code: Call | None = None


class Term(NamedTuple):
    """``sign * rows``, or ``sign * rows @ weight[:, first:first + width].T``."""

    rows: UngatheredRows
    sign: int
    weight: Call | None = None
    first: int = 0
    width: int = 0


class Terms(NamedTuple):
    """A sum of terms with ``columns`` columns, and the biases that are added to it."""

    terms: tuple[Term, ...]
    biases: tuple[Call, ...]
    columns: int

    @property
    def split(self) -> bool:
        """Whether any term is more than plain rows of edges."""
        return any(t.rows.place != "edge" or t.rows.code is not None for t in self.terms)


def terms_of(captured: Captured, node: Any, depth: int = 0) -> Terms:
    """Returns the terms of a node of shape ``[E, F]``; the node itself if nothing more is known."""
    sizes = shape(node) or (0, 0)
    whole = Terms((Term(_rows(captured, node), 1),), (), sizes[-1])
    if depth > MOST_DEPTH:
        return whole
    if is_call(node, ADD, SUB) and all(shape(part) == sizes for part in node.args):
        if depth and not used_once(node):
            return whole
        first, second = (terms_of(captured, part, depth + 1) for part in node.args)
        if is_call(node, SUB):
            if second.biases:
                return whole
            second = second._replace(terms=tuple(t._replace(sign=-t.sign) for t in second.terms))
        return Terms(first.terms + second.terms, first.biases + second.biases, sizes[-1])
    if is_call(node, LINEAR) and (not depth or used_once(node)):
        split = _linear(captured, node)
        return whole if split is None else split
    return whole


def _rows(captured: Captured, node: Any) -> UngatheredRows:
    if is_call(node, GATHER) and len(shape(node) or ()) == 2:
        base, _, index = node.args
        place, sizes = captured.index(index), shape(base)
        if sizes is not None and sizes[0] == captured.nodes_at(place):
            return UngatheredRows(base, str(place))
        if place is None and sizes is not None and is_small(captured, node):
            return UngatheredRows(base, "edge", index)
    return UngatheredRows(node, "edge")


def is_small(captured: Captured, node: Any) -> bool:
    """Whether a node gathers, one row per edge, from a table of far fewer rows."""
    if not captured.has_edges or not is_call(node, GATHER):
        return False
    if captured.index(node.args[2]) is not None:
        return False
    rows, index = shape(node.args[0]), tensor(node.args[2])
    if rows is None or index is None or len(rows) != 2 or index.dtype != torch.int64:
        return False
    return tuple(index.shape) == (captured.edges,) and rows[0] * FEWER <= captured.edges


def _linear(captured: Captured, node: Call) -> Terms | None:
    """A linear layer of a concatenation, split by its parts; None if nothing is gained."""
    x, weight, bias = node.args
    out = shape(weight)
    if out is None or not _same(node, weight, bias):
        return None
    parts = _parts(captured, node, x)
    if parts is None or sum(_columns(part[0]) for part in parts) != out[1]:
        return None
    terms: list[Term] = []
    first = 0
    for part in parts:
        width = _columns(part[0])
        terms += [term._replace(weight=weight, first=first, width=width) for term in part]
        first += width
    result = Terms(tuple(terms), () if bias is None else (bias,), out[0])
    return result if result.split and all(_same(node, t.rows.base) for t in terms) else None


def _same(*nodes: Any) -> bool:
    return len({dtype(node) for node in nodes if node is not None}) == 1


def _columns(term: Term) -> int:
    sizes = shape(term.rows.base)
    return 0 if sizes is None else sizes[-1]


def _parts(captured: Captured, anchor: Call, node: Any) -> list[list[Term]] | None:
    """The parts of a concatenation, each as a sum of rows without weights."""
    if is_cat(node) and len(shape(node) or ()) == 2:
        parts: list[list[Term]] = []
        for part in node.args[0]:
            inner = _parts(captured, anchor, part)
            if inner is None:
                return None
            parts += inner
        return parts
    if is_call(node, SELECT) and len(shape(node.args[0]) or ()) == 3 and node.args[1] == 1:
        return _slices(captured, anchor, node.args[0], node.args[2])
    terms = terms_of(captured, node, MOST_DEPTH // 2)
    plain = all(term.weight is None for term in terms.terms) and not terms.biases
    alike = all(_columns(term) == terms.columns for term in terms.terms)
    if not plain or not alike:
        return [[Term(UngatheredRows(node, "edge"), 1)]]
    return [list(terms.terms)]


def _slices(captured: Captured, anchor: Call, node: Any, tower: int) -> list[list[Term]] | None:
    """:func:`_parts` of ``node[:, tower]`` for a node with three dimensions."""
    if is_cat(node):
        parts: list[list[Term]] = []
        for part in node.args[0]:
            inner = _slices(captured, anchor, part, tower)
            if inner is None:
                return None
            parts += inner
        return parts
    if is_call(node, GATHER):
        place, base = captured.index(node.args[2]), node.args[0]
        if (shape(base) or (0,))[0] == captured.nodes_at(place):
            sliced = slice_of(captured, anchor, base, tower)
            return None if sliced is None else [[Term(UngatheredRows(sliced, str(place)), 1)]]
    sliced = slice_of(captured, anchor, node, tower)
    return None if sliced is None else [[Term(_rows(captured, sliced), 1)]]


def slice_of(captured: Captured, anchor: Call, node: Any, tower: int) -> Call | None:
    """Returns ``node[:, tower]`` of ``[R, T, F]`` as two-dimensional rows, without a copy if towers
    repeat the same rows or are adjacent columns; None if there is no such tower."""
    sizes = shape(node)
    if sizes is None or len(sizes) != 3 or not -sizes[1] <= tower < sizes[1]:
        return None
    tower %= sizes[1]
    repeated = is_method(node, "repeat") and tuple(node.args[1:]) == (1, sizes[1], 1)
    repeated |= is_method(node, "expand") and len(node.args) == 4
    if repeated and (shape(node.args[0]) or (0, 0))[1] == 1:
        return slice_of(captured, anchor, node.args[0], 0)
    if is_method(node, "view", "reshape", "unsqueeze") or is_call(node, torch.unsqueeze):
        below = shape(node.args[0])
        if below == (sizes[0], sizes[1] * sizes[2]):
            if sizes[1] == 1:
                return node.args[0]
            key = ("narrow", node.args[0], tower * sizes[2], sizes[2])
            return _remembered(captured, anchor, key, torch.narrow, node.args[0], 1, *key[2:])
    if node.op == "placeholder":
        return captured.before(anchor, SELECT, node, 1, tower)
    towers = _remembered(captured, anchor, ("unbind", node), torch.unbind, node, 1)
    key = ("tower", node, tower)
    return captured.shared(key, lambda: captured.item(towers.next, towers, tower, node))


def _remembered(captured: Captured, anchor: Call, key: Any, function: Any, *args: Any) -> Call:
    """A call right after its operand, made once per key."""
    operand = args[0]
    if operand.op == "placeholder":
        return captured.before(anchor, function, *args)
    return captured.shared(key, lambda: captured.before(operand.next, function, *args))


def is_cat(node: Any) -> bool:
    """Whether a node concatenates along the last dimension."""
    if not is_call(node, torch.cat, torch.concat, torch.concatenate):
        return False
    dim = argument(node, 1, "dim", 0)
    return dim in (-1, len(shape(node) or ()) - 1) and len(node.args) > 0


def stacked(captured: Captured, node: Any) -> list[Terms]:
    """The terms of a message ``[E, F]``, as one item; or of ``[E, T, F]``, one item per tower."""
    sizes = shape(node) or ()
    if len(sizes) == 2:
        return [terms_of(captured, node)]
    stacks = is_call(node, torch.stack) and len(sizes) == 3
    dim = (argument(node, 1, "dim", 0)) if stacks else None
    if dim not in (1, -2) or not used_once_all(node.args[0]):
        return []
    return [terms_of(captured, part) for part in node.args[0]]


def used_once_all(nodes: Any) -> bool:
    """Whether each node has a single user."""
    return all(used_once(node) for node in nodes)
