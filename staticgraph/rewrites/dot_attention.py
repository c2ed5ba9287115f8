"""Dot-product attention among neighbours as one operator, dot_attention.

A transformer convolution, PyG's or written by hand. Read upwards from the sum: rows ``v[src]``,
perhaps with rows of the edges, times the shares that a softmax by destination gives of
``q[dst] . k[src]``; the product is a sum over columns, an ``einsum`` or a matrix product, scaled
anywhere, and the keys may have the same rows of the edges. One head may stand in two dimensions.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch

from staticgraph.kernels.dot_attention import dot_attention
from staticgraph.nn.functions import softmaxed
from staticgraph.rewrites.captured import Captured
from staticgraph.rewrites.edge_terms import is_small, made
from staticgraph.rewrites.words import (
    ADD,
    DIV,
    DROPOUT,
    GATHER,
    MUL,
    SCATTER,
    SHAPES,
    Call,
    is_call,
    is_float,
    is_method,
    shape,
    sides,
    under_shape,
    used_once,
)

NAME = "dot_attention"
_MATRIX = (torch.matmul, torch.bmm, operator.matmul)


class Rows(NamedTuple):
    """What edges have as keys or values: the nodes' rows that their sources have, and their own,
    None for none; before any reshape."""

    node: Call
    edge: Call | None


class Scores(NamedTuple):
    """Of ``scale * query[dst] . keys``."""

    query: Call
    keys: Rows
    scale: float


class Odd(Exception):
    """The one thing that stands in the way, and the node that is it."""

    def __init__(self, reason: str, node: Call) -> None:
        super().__init__(reason)
        self.node = node


def rewrite(captured: Captured) -> None:
    """Every weighted sum by the batch's own destinations whose weights are such a softmax's."""
    if not captured.facts:
        return
    for node in list(captured.graph.nodes):
        if is_call(node, SCATTER) and node.users and captured.index(node.args[1]) == "dst":
            try:
                _at(captured, node)
            except Odd as odd:
                captured.miss(NAME, odd.node, str(odd))


def _at(captured: Captured, node: Call) -> None:
    """
    Raises:
        Odd: the weights are a softmax of such products, and something else stands in the way.
    """
    message, _, dim, groups, reduce = node.args
    message = under_shape(message)
    found = shape(message)
    if found is None or len(found) not in (2, 3) or not is_call(message, MUL):
        return
    for first, second in sides(message):
        shares, dropped = under_shape(second), None
        if is_call(shares, DROPOUT):
            shares, dropped = under_shape(shares.args[0]), shares
        if not is_call(shares, softmaxed) or shape(first) != found:
            continue
        if shape(second) != (*found[:-1], 1) or found[0] != captured.edges:
            continue
        heads = 1 if len(found) == 2 else found[1]
        scores = _scores(captured, shares.args[0], heads)
        if scores is None:
            return
        if dropped is not None:
            raise Odd("attention weights are dropped in training", node)
        if reduce not in ("sum", "add") or dim != 0 or groups != captured.nodes:
            raise Odd("an aggregation other than a sum by destination", node)
        if not used_once(shares):
            raise Odd("the attention weights are used elsewhere", node)
        if node in captured.differentiated:
            raise Odd("its derivative is taken in the forward, and has one of its own", node)
        _, index, number, along = shares.args
        if captured.index(index) != "dst" or number != captured.nodes or along != 0:
            raise Odd("the softmax is not over the same edges", node)
        values = _rows(captured, first)
        if values is None:
            raise Odd(
                "what is weighed is no row of a neighbour, nor that and one of the edge", first
            )
        if None not in (scores.keys.edge, values.edge) and scores.keys.edge is not values.edge:
            raise Odd("keys and values have different rows of the edges", first)
        if is_float(node):
            _put(captured, node, scores, values, heads)
        return


def _put(captured: Captured, node: Call, scores: Scores, values: Rows, heads: int) -> None:
    edge = values.edge if scores.keys.edge is None else scores.keys.edge
    found = node.meta["example_value"]
    options: dict[str, Any] = {"heads": heads, "scale": scores.scale, "dtype": found.dtype}
    if edge is not None:
        options |= {"to_key": scores.keys.edge is not None, "to_value": values.edge is not None}
        if captured.target.device == "cpu" and edge in captured.folded and is_small(captured, edge):
            options |= {"edge": edge.args[0], "code": edge.args[2]}
        else:
            options["edge"] = _flat(captured, node, edge)
    operands = [_flat(captured, node, one) for one in (scores.query, scores.keys.node, values.node)]
    new = captured.before(node, dot_attention, *operands, *captured.pointers, **options)
    captured.rewrote(NAME, node)
    flat = (captured.nodes, (shape(operands[2]) or (0, 0))[1])
    new.meta["example_value"] = found.new_empty(flat)
    for user in list(node.users):  # heads joined again, as it gives them
        if is_method(user, *SHAPES) and shape(user) == flat:
            captured.replace(user, new)
    if node.users:
        captured.replace(node, made(captured, node, torch.reshape, new, shape(node)))


def _flat(captured: Captured, anchor: Call, rows: Call) -> Call:
    """``[R, H * C]`` of ``[R, H, C]``."""
    found = shape(rows)
    assert found is not None
    below = rows
    while len(shape(below) or ()) != 2 and is_method(below, "view", "reshape", "unflatten"):
        below = below.args[0]
    number = 1
    for size in found[1:]:
        number *= size
    if shape(below) == (found[0], number):
        return below
    return made(captured, anchor, torch.reshape, rows, (found[0], number))


# ---------------------------------------------------------------------- scores


def _scores(captured: Captured, node: Any, heads: int) -> Scores | None:
    """What a softmax is over; None where no product of a query and a key leads there.

    Raises:
        Odd: one does, of other rows.
    """
    scale, node = _scaled(node)
    if (shape(node) or ())[:1] != (captured.edges,):
        return None
    pair = _product(node)
    if pair is None:
        return None
    sizes = {shape(one) for one in pair}
    (found,) = sizes if len(sizes) == 1 else (None,)
    if found is None or found[0] != captured.edges or (1 if len(found) == 2 else found[1]) != heads:
        return None
    parts = [_scaled(one) for one in pair]
    for (_, query), (_, key) in (parts, parts[::-1]):
        asked = _gathered(captured, query, "dst")
        keys = _rows(captured, key)
        if asked is not None and keys is not None:
            return Scores(asked, keys, scale * parts[0][0] * parts[1][0])
    if any(_gathered(captured, one, "dst") is not None for _, one in parts):
        raise Odd("keys are no rows of neighbours, nor these and rows of the edges", node)
    return None


def _scaled(node: Any) -> tuple[float, Any]:
    """What numbers a tensor is multiplied by, and the tensor."""
    scale = 1.0
    while True:
        if is_call(node, MUL, DIV) and isinstance(node.args[1], int | float):
            scale = scale * node.args[1] if node.target is MUL else scale / node.args[1]
        elif not (is_method(node, "squeeze") or is_call(node, torch.squeeze)):
            return scale, node
        node = node.args[0]


def _product(node: Any) -> tuple[Any, Any] | None:
    """The two tensors of one shape ``[E, C]`` or ``[E, H, C]`` that columns are multiplied and
    added up of."""
    if _adds_columns(node):
        return tuple(node.args[0].args) if is_call(node.args[0], MUL) else None
    if is_call(node, torch.functional.einsum, torch.einsum):
        return _einsum(node)
    if is_call(node, *_MATRIX) or is_method(node, "matmul", "bmm"):
        return _matrix(node)
    return None


def _adds_columns(node: Any) -> bool:
    """Whether a node adds up the last of two or three dimensions, however that is said."""
    if not is_method(node, "sum") and not is_call(node, torch.sum):
        return False
    given = dict(zip(("input", "dim", "keepdim"), node.args, strict=False)) | node.kwargs
    dims, last = given.get("dim"), len(shape(given.get("input")) or ())
    (dim,) = dims if isinstance(dims, list | tuple) and len(dims) == 1 else (dims,)
    return last in (2, 3) and dim in (-1, last - 1) and set(given) <= {"input", "dim", "keepdim"}


def _einsum(node: Call) -> tuple[Any, Any] | None:
    """``einsum("ehc,ehc->eh", a, b)``."""
    equation, *operands = node.args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    given, arrow, out = equation.replace(" ", "").partition("->")
    first, _, second = given.partition(",")
    plain = first.isalpha() and len(set(first)) == len(first) in (2, 3)
    if not plain or second != first or not arrow or out != first[:-1]:
        return None
    return operands[0], operands[1]


def _matrix(node: Call) -> tuple[Any, Any] | None:
    """``a[..., None, :] @ b[..., :, None]``."""
    if len(node.args) != 2 or node.kwargs:
        return None
    row, column = node.args
    first, second = shape(row), shape(column)
    if first is None or second is None or len(first) not in (3, 4):
        return None
    if first[-2] != 1 or second != (*first[:-2], first[-1], 1):
        return None
    below = [_without(one, len(first) - 1) for one in (row, column)]
    return None if None in below else (below[0], below[1])


def _without(node: Any, dims: int) -> Any:
    """What one dimension of one entry was put into; None where that cannot be seen."""
    known = is_method(node, "unsqueeze", "view", "reshape") or is_call(node, torch.unsqueeze)
    if not known or len(shape(node.args[0]) or ()) != dims:
        return None
    below, found = shape(node.args[0]), shape(node)
    assert below is not None
    assert found is not None
    ones = found[:-2] + tuple(size for size in found[-2:] if size != 1)
    return node.args[0] if below == ones or (found[-1] == 1 == found[-2]) else None


# ---------------------------------------------------------------------- rows


def _gathered(captured: Captured, node: Any, place: str) -> Call | None:
    """``x [N, ...]`` of ``x[index]``, perhaps under another shape, by that end of the edges."""
    found = shape(node)
    below = node if is_call(node, GATHER) else under_shape(node)
    if found is None or not is_call(below, GATHER) or captured.index(below.args[2]) != place:
        return None
    base, alike = shape(below.args[0]), (shape(below) or ())[:1] == found[:1]
    ours = base is not None and len(base) in (2, 3) and base[0] == captured.nodes
    return below.args[0] if ours and alike and is_float(below) else None


def _rows(captured: Captured, node: Any) -> Rows | None:
    """What a sum of neighbours' rows and of rows of the edges is of; None for any other."""
    terms, left = [], [node]
    while left:
        term = left.pop()
        if is_call(term, ADD) and all(shape(one) == shape(node) for one in term.args):
            left += term.args
        else:
            terms.append(term)
    if len(terms) > 2:
        return None
    for at, term in enumerate(terms):
        base = _gathered(captured, term, "src")
        if base is None:
            continue
        rest = terms[:at] + terms[at + 1 :]
        if not rest:
            return Rows(base, None)
        if _gathered(captured, rest[0], "src") or _gathered(captured, rest[0], "dst"):
            return None
        return Rows(base, _edges(rest[0])) if is_float(rest[0]) else None
    return None


def _edges(node: Call) -> Call:
    """Rows of edges before they were cut into heads, so that the same rows are the same node."""
    while is_method(node, "view", "reshape", "unflatten") and len(shape(node.args[0]) or ()) in (
        2,
        3,
    ):
        if (shape(node.args[0]) or ())[:1] != (shape(node) or ())[:1]:
            break
        node = node.args[0]
    return node
