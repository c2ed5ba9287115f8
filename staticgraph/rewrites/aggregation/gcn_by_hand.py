"""Rewrites GCN's normalisation written out by hand to this library's operator ``gcn_sum``.

The pattern is the sum of ``x[src] * (root[src] * root[dst])[:, None]``, where ``root`` is computed
from degrees, optionally followed by the node's own term ``root * root * x`` and a bias. A product
is read as its factors, in any order and shape. It differs from an ordinary weight per edge in that
the same vector is gathered at both ends: then nothing needs to be computed per edge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from staticgraph.kernels.gcn_sum import gcn_sum
from staticgraph.rewrites.aggregation.gcn_sum import with_bias
from staticgraph.rewrites.captured_graph.canonical_ops import (
    GATHER,
    MUL,
    SCATTER,
    Call,
    added_to,
    is_call,
    is_float,
    shape,
    tensor,
    under_shape,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype

NAME = "gcn_sum"


class Weighed(NamedTuple):
    """Rows ``[N, F]``, the ``N`` numbers that scale them at both ends, and other weights of the
    edges, ``E`` numbers each."""

    x: Call
    root: Call
    weights: list[Call]


def rewrite(captured: Captured) -> None:
    """Rewrites every sum by destination of rows that one vector scales at both ends."""
    if not captured.facts:
        return
    for node in captured.calls(SCATTER):
        found = _weighed(captured, node.args[0])
        if found is not None and captured.by_destination(node, "sum", "add"):
            _put(captured, node, found)


def factors(node: Any) -> list[Any]:
    """Returns the factors of a product, without the views around them."""
    below = under_shape(node)
    if is_call(below, MUL) and isinstance(below.args[1], Node):
        return [one for part in below.args for one in factors(part)]
    return [node if is_call(node, GATHER) else below]


def _weighed(captured: Captured, rows: Any) -> Weighed | None:
    sizes = shape(rows)
    if not is_call(rows, MUL) or sizes is None or len(sizes) != 2:
        return None
    x: list[Call] = []
    ends: dict[str, list[Call]] = {"src": [], "dst": []}
    weights: list[Call] = []
    for one in factors(rows):
        place = captured.index(one.args[2]) if is_call(one, GATHER) else None
        base = one.args[0] if place in ends else None
        found = tensor(one)
        if found is None or not is_float(one):
            return None
        if place == "src" and shape(base) == (captured.nodes, sizes[1]) and sizes[1] > 1:
            x.append(base)
        elif place in ends and found.numel() == captured.edges:
            ends[str(place)].append(under_shape(base))
        elif found.numel() == captured.edges == found.size(0):
            weights.append(one)
        else:
            return None
    if len(x) != 1 or len(ends["src"]) != 1 or ends["src"] != ends["dst"]:
        return None
    root = ends["src"][0]
    numbers = tensor(root)
    assert numbers is not None
    if numbers.numel() != captured.nodes or not same_dtype(x[0], root, *weights):
        return None
    return Weighed(x[0], root, weights)


def _put(captured: Captured, node: Call, found: Weighed) -> None:
    x = tensor(found.x)
    assert x is not None
    root = captured.reshaped(node, found.root, captured.nodes)
    weight = None
    for one in found.weights:
        flat = captured.reshaped(node, one, captured.edges)
        weight = flat if weight is None else captured.before(node, MUL, weight, flat, like=flat)
    last, own = _own_term(node, found)
    numbers = torch.ones if own else torch.zeros
    loops = captured.once((numbers, x.dtype), numbers, captured.nodes, **_kind(x))
    last, bias = with_bias(last)
    made = captured.before(
        last,
        gcn_sum,
        found.x,
        root,
        loops,
        captured.batch_edges,
        weight=weight,
        bias=bias,
        loops=False,
    )
    captured.replace(node, made, NAME, last=last)


def _own_term(node: Call, found: Weighed) -> tuple[Call, bool]:
    """The sum with ``root * root * x``, if that is the only user of the node; else the node."""
    total, own = added_to(node)
    left = factors(own) if is_call(own, MUL) else []
    same = sorted(map(str, left)) == sorted(map(str, (found.x, found.root, found.root)))
    return (total, True) if same else (node, False)


def _kind(x: Tensor) -> dict[str, Any]:
    return {"dtype": x.dtype, "device": x.device}
