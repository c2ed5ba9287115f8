"""Reads scores that are products of a node's query with its neighbours' keys.

The product is a sum over columns, an ``einsum`` or a matrix product, scaled anywhere by numbers;
its operands may have been split into heads before or after they were gathered, and rows of the
edges may have been added to the keys and to the values. Reshapes that keep the order of entries and
one row per edge change nothing, so everything is read through them.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch

from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    DIV,
    GATHER,
    MUL,
    SHAPES,
    Call,
    is_call,
    is_float,
    is_method,
    shape,
    under_shape,
)
from staticgraph.rewrites.captured_graph.captured import Captured

_MATRIX = (torch.matmul, torch.bmm, operator.matmul)


class KeyRows(NamedTuple):
    """The keys or values of edges, before any reshape: the tensor of nodes that their sources
    index, and the edges' own rows, or None."""

    node: Call
    edge: Call | None


class DotScores(NamedTuple):
    """The scores ``scale * query[dst] . keys``."""

    query: Call
    keys: KeyRows
    scale: float


class Product(NamedTuple):
    """``scale`` times the product of two tensors, summed over columns, which were the last
    dimension of ``summed``: ``[E, C]`` or ``[E, H, C]``."""

    scale: float
    pair: tuple[Any, ...]
    summed: tuple[int, ...]


class OddProducts(Exception):
    """The single obstacle to a rewrite, and the node that causes it."""

    def __init__(self, reason: str, node: Call) -> None:
        super().__init__(reason)
        self.node = node


def scores_of(captured: Captured, node: Any, heads: int) -> DotScores | None:
    """Reads what a softmax is over; None unless it is a product of a query and a key.

    Raises:
        OddProducts: it is such a product, but of other rows.
    """
    scale, node = _scaled(node)
    if (shape(node) or ())[:1] != (captured.edges,):
        return None
    product = _product(node)
    if product is None:
        return None
    summed = product.summed
    if summed[0] != captured.edges or heads != (1 if len(summed) == 2 else summed[1]):
        return None
    scale *= product.scale
    parts = [_scaled(one) for one in product.pair]
    for (_, query), (_, key) in (parts, parts[::-1]):
        asked = _gathered(captured, query, "dst")
        keys = rows_of(captured, key)
        if asked is not None and keys is not None:
            return DotScores(asked, keys, scale * parts[0][0] * parts[1][0])
    if any(_gathered(captured, one, "dst") is not None for _, one in parts):
        raise OddProducts("keys are no rows of neighbours, nor these and rows of the edges", node)
    return None


def _scaled(node: Any) -> tuple[float, Any]:
    """The number that a tensor of edges is multiplied by, and the tensor, under any reshapes."""
    scale = 1.0
    while True:
        node = _uncut(node)
        if not is_call(node, MUL, DIV) or not isinstance(node.args[1], int | float):
            return scale, node
        if node.args[1] == 0:
            return scale, node
        scale = scale * node.args[1] if node.target is MUL else scale / node.args[1]
        node = node.args[0]


def _product(node: Any) -> Product | None:
    """A node as such a product, or None."""
    if _adds_columns(node):
        summed = node.args[0] if node.args else node.kwargs["input"]
        scale, product = _scaled(summed)
        found = shape(summed)
        if found is None or not is_call(product, MUL):
            return None
        return _alike(Product(scale, tuple(product.args), found))
    if is_call(node, torch.einsum):
        return _einsum(node)
    if is_call(node, *_MATRIX) or is_method(node, "matmul", "bmm"):
        return _matrix(node)
    return None


def _adds_columns(node: Any) -> bool:
    """Whether a node sums over the last of two or three dimensions, in any spelling."""
    if not is_method(node, "sum") and not is_call(node, torch.sum):
        return False
    given = dict(zip(("input", "dim", "keepdim"), node.args, strict=False)) | node.kwargs
    dims, last = given.get("dim"), len(shape(given.get("input")) or ())
    (dim,) = dims if isinstance(dims, list | tuple) and len(dims) == 1 else (dims,)
    return last in (2, 3) and dim in (-1, last - 1) and set(given) <= {"input", "dim", "keepdim"}


def _einsum(node: Call) -> Product | None:
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
    return _alike(Product(1.0, tuple(operands), shape(operands[0]) or ()))


def _alike(product: Product) -> Product | None:
    """The product, if no operand is broadcast; else None."""
    one, other = map(shape, product.pair)
    same = one is not None and one == other and math.prod(one) == math.prod(product.summed)
    return product if same else None


def _matrix(node: Call) -> Product | None:
    """``a[..., None, :] @ b[..., :, None]``."""
    if len(node.args) != 2 or node.kwargs:
        return None
    first, second = map(shape, node.args)
    if first is None or second is None or len(first) not in (3, 4) or first[-2] != 1:
        return None
    if second != (*first[:-2], first[-1], 1):
        return None
    return Product(1.0, tuple(node.args), (*first[:-2], first[-1]))


def _gathered(captured: Captured, node: Any, place: str) -> Call | None:
    """``x [N, ...]`` of ``x[index]``, possibly reshaped, indexed by that end of the edges."""
    found = shape(node)
    below = node if is_call(node, GATHER) else under_shape(node)
    if found is None or not is_call(below, GATHER) or captured.index(below.args[2]) != place:
        return None
    base, alike = shape(below.args[0]), (shape(below) or ())[:1] == found[:1]
    ours = base is not None and len(base) in (2, 3) and base[0] == captured.nodes
    return below.args[0] if ours and alike and is_float(below) else None


def rows_of(captured: Captured, node: Any) -> KeyRows | None:
    """The terms of a sum of neighbours' rows and rows of the edges; None for any other sum."""
    terms, left = [], [node]
    while left:
        term = left.pop()
        below = _uncut(term)
        if is_call(below, ADD) and all(shape(one) == shape(below) for one in below.args):
            left += below.args
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
            return KeyRows(base, None)
        if _gathered(captured, rest[0], "src") or _gathered(captured, rest[0], "dst"):
            return None
        return KeyRows(base, _uncut(rest[0])) if is_float(rest[0]) else None
    return None


def _uncut(node: Call) -> Call:
    """Rows of edges before any reshape, so that equal rows are the same node."""
    while is_method(node, *SHAPES):
        below, found = shape(node.args[0]), shape(node)
        if not below or not found or below[0] != found[0]:
            break
        node = node.args[0]
    return node
