"""Inserts terms of messages into the graph as operands of the operators over edges.

A term of a linear layer becomes a product over the rows that it reads, before they are gathered:
one per node or per table entry instead of one per edge. Products of the same rows share one weight,
layers of towers that read the same rows become one layer with more columns, and a bias is added to
nodes if there are any.

Invariant: the operands' values for an edge add up to the sum of the terms
(:mod:`staticgraph.rewrites.neighbours.edge_terms`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from staticgraph.rewrites.captured_graph.canonical_ops import ADD, GATHER, LINEAR, SUB, Call
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.neighbours.edge_terms import Terms, UngatheredRows


class Operands(NamedTuple):
    """Operands of the operators over edges."""

    source: Call | None
    target: Call | None
    edge: Call | None
    code: Call | None


def operands(captured: Captured, anchor: Call, towers: list[Terms]) -> Operands | None:
    """Inserts the products and returns the operands, with towers concatenated in the columns; None
    if several towers do not read the same rows."""
    first = towers[0]
    if len(towers) == 1:
        return _one(captured, anchor, first)
    weights = [_weight(each) for each in towers]
    if None in weights or any(_layout(each) != _layout(first) for each in towers):
        return None
    return _joined(captured, anchor, towers, weights)


def _layout(terms: Terms) -> Any:
    return [(t.rows, t.sign, t.first, t.width) for t in terms.terms], len(terms.biases)


def _weight(terms: Terms) -> Call | None:
    weights = {term.weight for term in terms.terms}
    return weights.pop() if len(weights) == 1 else None


def _joined(captured: Captured, anchor: Call, towers: list[Terms], weights: list[Any]) -> Operands:
    """Merges towers that read the same rows into one layer with more columns."""
    weight = captured.before(anchor, torch.cat, weights, 0)
    biases = ()
    if towers[0].biases:
        biases = (captured.before(anchor, torch.cat, [each.biases[0] for each in towers], 0),)
    terms = tuple(term._replace(weight=weight) for term in towers[0].terms)
    columns = sum(each.columns for each in towers)
    return _one(captured, anchor, Terms(terms, biases, columns))


def _one(captured: Captured, anchor: Call, terms: Terms) -> Operands:
    slices = _Slices(captured, anchor, terms)
    sums: dict[tuple[str, Any], Any] = {}
    biases = list(terms.biases)
    for rows, parts in slices.by_rows().items():
        plain = [sign for sign, weight in parts if weight is None]
        weights = [(sign, weight) for sign, weight in parts if weight is not None]
        addends = []
        if weights:
            weight = _signed(captured, anchor, weights)
            bias = biases.pop() if biases else None
            addends.append((1, captured.before(anchor, LINEAR, rows.base, weight, bias)))
        addends += [(sign, rows.base) for sign in plain]
        for sign, value in addends:
            key = rows.place, rows.code
            sums[key] = _plus(captured, anchor, sums.get(key), sign, value)
    codes = [code for place, code in sums if code is not None]
    edge_code = codes[0] if len(codes) == 1 and ("edge", None) not in sums else None
    edge = None
    for (place, code), value in sums.items():
        if place == "edge":
            rows = (
                value
                if code is None or code is edge_code
                else captured.before(anchor, GATHER, value, 0, code)
            )
            edge = _plus(captured, anchor, edge, 1, rows)
    source, target = sums.get(("src", None)), sums.get(("dst", None))
    for bias in biases:
        if target is not None:
            target = captured.before(anchor, ADD, target, bias)
        elif source is not None:
            source = captured.before(anchor, ADD, source, bias)
        else:
            edge = captured.before(anchor, ADD, edge, bias)
    return Operands(source, target, edge, edge_code)


class _Slices:
    """The columns of each weight, split once, so that its backward is one operation."""

    def __init__(self, captured: Captured, anchor: Call, terms: Terms) -> None:
        self._terms = terms
        self._cut: dict[tuple[Any, int], Any] = {}
        weights = dict.fromkeys(t.weight for t in terms.terms if t.weight is not None)
        for weight in weights:
            places = sorted({(t.first, t.width) for t in terms.terms if t.weight is weight})
            if len(places) == 1:
                self._cut[weight, places[0][0]] = weight
                continue
            widths = [width for _, width in places]
            whole = captured.before(anchor, torch.split, weight, widths, 1)
            for place, (first, _) in enumerate(places):
                self._cut[weight, first] = captured.item(anchor, whole, place, weight)

    def by_rows(self) -> dict[UngatheredRows, list[tuple[int, Any]]]:
        """Maps each kind of rows to the signs and weights that it is used with."""
        uses: dict[UngatheredRows, list[tuple[int, Any]]] = {}
        for term in self._terms.terms:
            weight = None if term.weight is None else self._cut[term.weight, term.first]
            uses.setdefault(term.rows, []).append((term.sign, weight))
        return uses


def _signed(captured: Captured, anchor: Call, weights: list[tuple[int, Any]]) -> Call:
    total: Any = None
    for sign, weight in sorted(weights, key=lambda pair: -pair[0]):
        total = _plus(captured, anchor, total, sign, weight)
    return total


def _plus(captured: Captured, anchor: Call, total: Any, sign: int, value: Any) -> Any:
    if total is None:
        return value if sign > 0 else captured.before(anchor, torch.neg, value)
    return captured.before(anchor, ADD if sign > 0 else SUB, total, value)
