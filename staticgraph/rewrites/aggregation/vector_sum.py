"""Rewrites messages of vectors, as in equivariant layers: ``vector_sum``.

The pattern is ``v[src] * gate[:, None] + along[:, None] * unit[:, :, None]``, summed by
destination, in either order and with or without the second term; gate, along and a third part that
is summed as it is are columns of one product of the source's row with the edge's. Where something
else reads that product, it is kept, and its columns are read; gate and along that are columns of
two tensors are concatenated.

This runs on a CPU only: the library has no CUDA kernel for it.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch

from staticgraph.kernels.vector_sum import vector_sum
from staticgraph.rewrites.aggregation.neighbour_sum import source
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    MUL,
    SCATTER,
    Call,
    argument,
    is_call,
    is_method,
    shape,
    sides,
    tensor,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype

NAME = "vector_sum"


class EdgeColumns(NamedTuple):
    """Columns of rows of edges, ``[E, F]``.

    Attributes:
        node: the columns.
        whole: the tensor ``[E, K]`` whose columns they are; ``node`` itself if there is no wider
            one.
        place: the column of ``whole`` at which they begin.
    """

    node: Call
    whole: Call
    place: int


class VectorMessage(NamedTuple):
    """Vectors ``[N, D, F]``, their gate, and the directions ``[E, D]`` with their factors."""

    vectors: Call
    gate: EdgeColumns
    along: EdgeColumns | None
    unit: Call | None


def rewrite(captured: Captured) -> None:
    """Rewrites every sum of such vectors by the batch's own destinations."""
    if not captured.facts or captured.target.device != "cpu":
        return
    for node in captured.calls(SCATTER):
        if captured.by_destination(node, "sum", "add") and len(shape(node) or ()) == 3:
            found = _message(captured, node.args[0])
            if found is not None:
                _put(captured, node, found)


def _message(captured: Captured, rows: Any) -> VectorMessage | None:
    if not used_once(rows):
        return None
    if is_call(rows, ADD):
        for first, second in sides(rows):
            gated, turned = _gated(captured, first), _turned(captured, second)
            if gated is not None and turned is not None:
                return _alike(VectorMessage(*gated, *turned))
    gated = _gated(captured, rows)
    return None if gated is None else _alike(VectorMessage(*gated, None, None))


def _alike(found: VectorMessage) -> VectorMessage | None:
    """The message, if its operands have one dtype and its parts do not overlap; else None."""
    parts = [part for part in (found.gate, found.along) if part is not None]
    same = same_dtype(found.vectors, found.unit, *(part.whole for part in parts))
    apart = len({(part.whole, part.place) for part in parts}) == len(parts)
    return found if same and apart else None


def _gated(captured: Captured, rows: Any) -> tuple[Call, EdgeColumns] | None:
    """``v[src] * gate[:, None]``, or None."""
    if not is_call(rows, MUL) or not used_once(rows):
        return None
    sizes = shape(rows) or (0, 0, 0)
    for first, second in sides(rows):
        vectors = source(captured, first)
        if vectors is not None and shape(first) == sizes:
            part = _part(captured, second, (captured.edges, 1, sizes[2]))
            return None if part is None else (vectors, part)
    return None


def _turned(captured: Captured, rows: Any) -> tuple[EdgeColumns, Call] | None:
    """``along[:, None] * unit[:, :, None]``, or None."""
    if not is_call(rows, MUL) or not used_once(rows):
        return None
    edges, dims, width = shape(rows) or (0, 0, 0)
    for first, second in sides(rows):
        part = _part(captured, first, (edges, 1, width))
        unit = under_shape(second)
        if part is None or shape(second) != (edges, dims, 1) or shape(unit) != (edges, dims):
            continue
        return part, unit
    return None


def _part(captured: Captured, node: Any, sizes: tuple[int, ...]) -> EdgeColumns | None:
    """The columns that a tensor of these sizes is made of."""
    if shape(node) != sizes:
        return None
    below = under_shape(node)
    if (shape(below) or (0,))[0] != captured.edges or (shape(below) or (0,))[-1] != sizes[-1]:
        return None
    if is_call(below, operator.getitem) and isinstance(below.args[1], int) and _cut(below.args[0]):
        widths = [one.shape[-1] for one in below.args[0].meta["example_value"]]
        whole = below.args[0].args[0]
        if all(size == 1 for size in (shape(whole) or (0,))[1:-1]):
            return EdgeColumns(below, whole, sum(widths[: below.args[1] % len(widths)]))
    return EdgeColumns(below, below, 0)


def _cut(node: Any) -> bool:
    """Whether a node splits a tensor along its last dimension."""
    cuts = is_call(node, torch.split, torch.chunk) or is_method(node, "split", "chunk")
    if not cuts or tensor(node.args[0]) is None:
        return False
    dim = argument(node, 2, "dim", 0)
    return dim in (-1, len(shape(node.args[0]) or ()) - 1)


def _put(captured: Captured, node: Call, found: VectorMessage) -> None:
    gate, along = found.gate, found.along
    apart = along is not None and along.whole is not gate.whole
    scalar = None if apart or gate.whole is gate.node else _scalar(captured, node, found)
    anchor = node if scalar is None else scalar[1]
    options: dict[str, Any] = {"gate": 0 if apart else gate.place}
    if along is not None:
        options["along"] = (shape(found.vectors) or (0,))[-1] if apart else along.place
    if scalar is not None:
        options["scalar"] = scalar[2].place
    if apart:
        assert along is not None
        rows = _side_by_side(captured, anchor, gate.node, along.node)
    else:
        parts = [one for one in (gate, along, scalar and scalar[2]) if one is not None]
        x, edge = _factors(captured, gate.whole) if _alone(gate, parts) else (None, gate.whole)
        width = (shape(gate.whole) or (0,))[-1]
        rows = captured.reshaped(anchor, edge, captured.edges, width)
        if x is not None:
            options["x"] = captured.reshaped(anchor, x, captured.nodes, width)
    given = found.vectors, rows, found.unit, captured.batch_edges
    made = captured.before(anchor, vector_sum, *given, **options)
    sums = [(node, captured.item(anchor, made, 0, node))]
    if scalar is not None:
        second = captured.item(anchor, made, 1, scalar[0])
        sums.append((scalar[0], captured.reshaped(anchor, second, *(shape(scalar[0]) or ()))))
    for old, new in sums:
        captured.replace(old, new, NAME)


def _alone(gate: EdgeColumns, parts: list[EdgeColumns]) -> bool:
    """Whether the whole is read through these parts alone, each of them once."""
    if gate.whole is gate.node or not used_once(gate.whole):
        return False
    return len(gate.node.args[0].users) == len(parts) and all(used_once(one.node) for one in parts)


def _side_by_side(captured: Captured, anchor: Call, *parts: Call) -> Call:
    """Concatenates columns of edges, ``[E, F]`` each, to ``[E, 2 F]``."""
    flat = [captured.reshaped(anchor, one, captured.edges, -1) for one in parts]
    return captured.before(anchor, torch.cat, flat, 1, like=flat[0])


def _scalar(
    captured: Captured, node: Call, found: VectorMessage
) -> tuple[Call, Call, EdgeColumns] | None:
    """The sum by destination of a third part of the same rows, the earlier of both sums, and that
    part, if both sums can be computed at the place of the earlier one; else None."""
    order = {one: place for place, one in enumerate(captured.graph.nodes)}
    cut = found.gate.node.args[0]
    width = (shape(found.vectors) or (0,))[-1]
    taken = [found.gate.place] + ([] if found.along is None else [found.along.place])
    needed = [found.vectors] + ([] if found.unit is None else [found.unit])
    for item in cut.users:
        part = _part(captured, item, shape(item) or ())
        if part is None or part.place in taken or (shape(item) or (0,))[-1] != width:
            continue
        for user in item.users:
            if not captured.by_destination(user, "sum", "add") or user.args[0] is not item:
                continue
            if all(order[one] < order[user] for one in needed):
                return user, min(node, user, key=order.__getitem__), part
    return None


def _factors(captured: Captured, whole: Call) -> tuple[Call | None, Call]:
    """The rows of sources and of edges whose product this is; None and the whole otherwise."""
    if is_call(whole, MUL):
        for first, second in sides(whole):
            x = source(captured, first)
            if x is not None and shape(first) == shape(second) == shape(whole):
                return (x, second) if same_dtype(x, second) else (None, whole)
    return None, whole
