"""Splits a linear layer of a concatenation whose parts are one tensor at several scales.

PNA concatenates its aggregations ``a``, and ``a`` times one number per node for every scaler, with
the node itself: ``linear(cat([x, a, s a]))``. Since ``linear(s a) = s linear(a)``, it equals
``x @ W0 + a @ W1 + s (a @ W2)``: the wide concatenation is never written, and ``a`` is read once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    GATHER,
    LINEAR,
    MUL,
    SELECT,
    Call,
    is_call,
    is_float,
    shape,
    sides,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype
from staticgraph.rewrites.neighbours.edge_terms import is_cat, slice_of

NAME = "cat_linear"


class ScaledRows(NamedTuple):
    """``scale * rows``: ``rows [R, K]``, ``scale [R, 1]``, or None for one."""

    rows: Call
    scale: Call | None
    width: int


def rewrite(captured: Captured) -> None:
    """Rewrites every linear layer of which a part is scaled row by row."""
    if captured.target.device != "cpu":
        return
    for node in captured.calls(LINEAR):
        _rewrite_node(captured, node)


def _rewrite_node(captured: Captured, node: Call) -> None:
    x, weight, bias = node.args
    if not is_float(node) or len(shape(node) or ()) != 2 or not _scaled(x):
        return
    parts = _parts(captured, node, x, None)
    if parts is None or sum(part.width for part in parts) != (shape(weight) or (0, 0))[1]:
        return
    scales = [part.scale for part in parts if part.scale is not None]
    if not scales or not same_dtype(node, weight, bias, *scales, *(p.rows for p in parts)):
        return
    pieces = _split(captured, node, weight, [part.width for part in parts])
    groups: dict[Call, list[tuple[Any, Call]]] = {}
    for part, piece in zip(parts, pieces, strict=True):
        groups.setdefault(part.rows, []).append((part.scale, piece))
    total: Any = None
    columns = (shape(weight) or (0,))[0]
    scaled: list[tuple[Any, Call]] = []
    for rows, taken in groups.items():
        whole = taken[0][1]
        if len(taken) > 1:
            whole = captured.before(node, torch.cat, [piece for _, piece in taken], 0)
        alone = len(taken) == 1 and taken[0][0] is None
        product = captured.before(node, LINEAR, rows, whole, bias if alone else None)
        bias = None if alone else bias
        products = [product]
        if len(taken) > 1:
            products = _split(captured, node, product, [columns] * len(taken))
        for (scale, _), value in zip(taken, products, strict=True):
            if scale is None:
                total = value if total is None else captured.before(node, ADD, total, value)
            else:
                scaled.append((scale, value))
    if total is None:
        (scale, value), *scaled = scaled
        total = captured.before(node, MUL, value, scale)
    for scale, value in scaled:
        total = captured.before(node, torch.addcmul, total, value, scale)
    if bias is not None:
        total = captured.before(node, ADD, total, bias)
    captured.replace(node, total, NAME)


def _scaled(node: Any, depth: int = 0) -> bool:
    """Whether a concatenation has a part that is multiplied by one number per row."""
    if depth > 4:
        return False
    if is_call(node, SELECT) and node.args[1] == 1 and depth == 0:
        return _scaled(node.args[0], 1)
    if is_cat(node):
        return any(_scaled(part, depth + 1) for part in node.args[0])
    return depth > 0 and _product(node) is not None


def _product(node: Any) -> tuple[Call, Call] | None:
    """Rows and the factor of each row, or None."""
    sizes = shape(node)
    if not is_call(node, MUL) or sizes is None:
        return None
    for rows, scale in sides(node):
        if shape(scale) == (sizes[0], *(1,) * (len(sizes) - 1)) and shape(rows) == sizes:
            return rows, scale
    return None


def _parts(
    captured: Captured, anchor: Call, node: Any, tower: int | None
) -> list[ScaledRows] | None:
    """The parts of a concatenation, for one tower if ``tower`` is given; None if unknown."""
    if is_call(node, SELECT) and tower is None and node.args[1] == 1:
        if len(shape(node.args[0]) or ()) != 3:
            return None
        return _parts(captured, anchor, node.args[0], node.args[2])
    if is_cat(node):
        parts: list[ScaledRows] = []
        for part in node.args[0]:
            inner = _parts(captured, anchor, part, tower)
            if inner is None:
                return None
            parts += inner
        return parts
    scale = None
    if (product := _product(node)) is not None:
        node, scale = product
        scale = captured.reshaped(anchor, scale, (shape(scale) or (0,))[0], 1)
    rows = node if tower is None else _tower(captured, anchor, node, tower)
    found_shape = shape(rows)
    if rows is None or found_shape is None or len(found_shape) != 2:
        return None
    return [ScaledRows(rows, scale, found_shape[1])]


def _tower(captured: Captured, anchor: Call, node: Any, tower: int) -> Call | None:
    if is_call(node, torch.transpose) and node.args[1:] == (0, 1):
        below = node.args[0]
        key = ("tower", below, tower)
        return captured.shared(key, lambda: captured.before(node, SELECT, below, 0, tower))
    if is_call(node, GATHER):
        return None
    return slice_of(captured, anchor, node, tower)


def _split(captured: Captured, anchor: Call, whole: Call, widths: list[int]) -> list[Call]:
    """Columns of a matrix, split in one operation, so that the backward is one operation, too."""
    if len(widths) == 1:
        return [whole]
    pieces = captured.before(anchor, torch.split, whole, widths, 1, like=whole)
    return [captured.item(anchor, pieces, place, whole) for place in range(len(widths))]
