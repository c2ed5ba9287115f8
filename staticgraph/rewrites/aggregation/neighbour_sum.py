"""Rewrites gather, edge term, activation and sum by destination to one pass: ``neighbour_sum``.

A message is read upwards from the sum: ``x[src]``, ``x[src] * w``, ``relu(x[src] + e)``, the last
also times one number per edge; the node's own term, ``(1 + eps) x``, is included. Rows of more than
one dimension, such as ``[N, T, F]`` of a time window, are treated as rows, too. Any other message
is computed as before, and only its sum uses the row pointers, without atomics (``segment_sum``), or
by source (``source_sum``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from staticgraph.kernels.neighbour_sum import neighbour_sum
from staticgraph.kernels.neighbours import source_sum
from staticgraph.kernels.segments import segment_max, segment_sum
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ACTIVATIONS,
    ADD,
    DIV,
    GATHER,
    MUL,
    RELU,
    SCATTER,
    Call,
    added_to,
    dtype,
    is_call,
    is_float,
    said,
    shape,
    sides,
    tensor,
    under_shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype

NAME = "neighbour_sum"
SUMS = ("sum", "add", "mean")


class Message(NamedTuple):
    """A message: the nodes, the edge operand, how they are combined, and the result's weight."""

    x: Call
    edge: Call | None
    transform: str
    weight: Call | None = None


def rewrite(captured: Captured) -> None:
    """Rewrites every sum, mean and max by the batch's own destinations."""
    for node in captured.calls(SCATTER):
        _at(captured, node)


def _at(captured: Captured, node: Call) -> None:
    rows, index, dim, groups, reduce = node.args
    if dim != 0 or not is_float(node) or reduce not in (*SUMS, "max"):
        return
    which = captured.index(index)
    if which is None:
        if captured.facts and groups == captured.nodes:
            captured.miss(NAME, node, "its index is not the batch's own", _origin(index))
        return
    if which != "dst" or groups != captured.nodes:
        if which == "src" and groups == captured.nodes:
            _by_source(captured, node)
        return
    if captured.differentiates(NAME, node):
        return
    found = message(captured, rows)
    reason = found if isinstance(found, str) else "the largest is no sum"
    if isinstance(found, Message) and reduce != "max":
        if _fused(captured, node, found, reduce):
            return
        reason = "a node's row of another shape"
    _by_pointers(captured, node, reason)


def message(captured: Captured, rows: Any) -> Message | str:
    """Reads how a message is made of nodes and edges; a string says what is not known."""
    if not isinstance(rows, Node) or len(shape(rows) or ()) < 2:
        return "a message of other than two dimensions"
    if (x := source(captured, rows)) is not None:
        return Message(x, None, "copy")  # other users of the rows do not matter: they read x, too
    if not used_once(rows):
        return "the message is used elsewhere"
    if is_call(rows, MUL):
        for first, second in sides(rows):
            x = source(captured, first)
            weight = _weight(captured, second, rows)
            if x is not None and weight is not None and same_dtype(x, weight):
                return Message(x, weight, "multiply")
        return _weighed_message(captured, rows)
    if is_call(rows, *ACTIVATIONS) or rows.op in ("call_function", "call_method"):
        name = ACTIVATIONS.get(rows.target) if rows.op == "call_function" else None
        inner = rows.args[0] if rows.args else None
        if name is None:
            return f"{said(rows)} is no known message"
        if is_call(inner, ADD) and used_once(inner) and rows.target is RELU:
            found = _relu_of_sum(captured, rows)
            return found or "a sum of something other than a neighbour's row and an edge's"
        if rows.target is not RELU:
            return f"{name} is no activation of the kernel"
    return f"{said(rows)} is no known message"


def _relu_of_sum(captured: Captured, rows: Any) -> Message | None:
    """``relu(x[src] + e)``, or None."""
    if not is_call(rows, RELU) or not is_call(rows.args[0], ADD) or not used_once(rows.args[0]):
        return None
    for first, second in sides(rows.args[0]):
        x = source(captured, first)
        if x is not None and shape(second) == shape(rows) and same_dtype(x, second):
            return Message(x, second, "relu_add")
    return None


def _weighed_message(captured: Captured, rows: Call) -> Message | str:
    """``relu(x[src] + e)`` times one number per edge; a string says why it is not."""
    for first, second in sides(rows):
        found = _relu_of_sum(captured, first)
        if found is None or not used_once(first):
            continue
        if shape(second) == shape(rows) or (weight := _weight(captured, second, rows)) is None:
            return "an activation times something other than one number per edge"
        if captured.has_gradient(second):
            return "an activation times one number per edge that has a gradient"
        return found._replace(weight=weight) if same_dtype(found.x, weight) else "two dtypes"
    return "a product of something else than a neighbour's row and a weight"


def source(captured: Captured, node: Any) -> Call | None:
    """Returns the tensor that a node gathers by the batch's own sources; None for other nodes."""
    if not is_call(node, GATHER) or captured.index(node.args[2]) != "src":
        return None
    x = node.args[0]
    found = shape(x)
    ok = found is not None and len(found) >= 2 and found[0] == captured.nodes
    return x if ok else None


def _weight(captured: Captured, node: Any, rows: Call) -> Call | None:
    found = shape(node)
    if found == shape(rows):
        return node
    wide = len(shape(rows) or ())
    if found != (captured.edges, *(1,) * (wide - 1)) or not is_float(node):
        return None
    below = under_shape(node)
    return captured.reshaped(rows, node if shape(below) != (captured.edges,) else below, -1)


def _fused(captured: Captured, node: Call, found: Message, reduce: str) -> bool:
    edge: Any = found.edge
    code = None
    edges = captured.batch_edges
    if len(shape(node) or ()) != 2:
        return _flattened(captured, node, found, reduce)
    if is_call(edge, GATHER) and edge in captured.folded:
        edge, code = edge.args[0], edge.args[2]
    options: dict[str, Any] = {"transform": found.transform, "mean": reduce == "mean"}
    if code is not None:
        options["code"] = code
    if found.weight is not None:
        options["weight"] = found.weight
    last, eps = _own_term(captured, node, found.x)
    if eps is not None:
        options["self_eps"] = eps
    made = captured.before(last, neighbour_sum, found.x, edge, edges, **options)
    return captured.replace(node, made, NAME, last=last)


def _flattened(captured: Captured, node: Call, found: Message, reduce: str) -> bool:
    """:func:`_fused` for rows ``[N, ..., F]``, laid out as ``[N, K]``."""
    x, edge = _flat(captured, node, found.x), found.edge
    if len(shape(edge) or ()) > 1:  # not one number per edge
        edge = _flat(captured, node, edge)
    options: dict[str, Any] = {"transform": found.transform, "mean": reduce == "mean"}
    if found.weight is not None:
        options["weight"] = found.weight
    made = captured.before(node, neighbour_sum, x, edge, captured.batch_edges, **options)
    made = captured.before(node, torch.reshape, made, shape(node))
    return captured.replace(node, made, NAME)


def _flat(captured: Captured, node: Call, rows: Any) -> Any:
    """``[R, ..., F]`` -> ``[R, K]``."""
    sizes = shape(rows)
    return rows if sizes is None else captured.reshaped(node, rows, sizes[0], -1)


def _own_term(captured: Captured, node: Call, x: Call) -> tuple[Call, Call | None]:
    """The sum of a node with ``(1 + eps) x``, and eps; the node itself and None without one."""
    total, own = added_to(node)
    if total is None or dtype(total) != dtype(node):
        return node, None
    if own is x:
        found = tensor(x)
        assert found is not None
        zero = torch.zeros((), dtype=found.dtype)
        return total, captured.constant(f"zero_{str(found.dtype)[6:]}", zero)
    if not is_call(own, MUL) or not used_once(own):
        return node, None
    for first, second in sides(own):
        if second is x and is_call(first, ADD) and first.args[1] == 1:
            eps = tensor(first.args[0])
            if eps is not None and eps.numel() == 1:
                return total, first.args[0]
    return node, None


def _by_pointers(captured: Captured, node: Call, reason: str) -> None:
    """Rewrites only the sum, of a message that is computed as before."""
    rows, _, _, _, reduce = node.args
    found = tensor(rows)
    if found is None or found.size(0) != captured.edges or found.dim() == 0:
        return
    captured.miss(NAME, node, reason, rows if isinstance(rows, Node) else None)
    row_ptr = captured.facts["row_ptr"]
    flat = _flat(captured, node, rows)
    if reduce == "max":
        made = captured.before(node, segment_max, flat, row_ptr)
    else:
        made = captured.before(node, segment_sum, flat, row_ptr, mean=reduce == "mean")
    made = captured.reshaped(node, made, *(shape(node) or ()))
    captured.replace(node, made, "segments")


def _by_source(captured: Captured, node: Call) -> None:
    """Rewrites a sum or a mean by the sources of the edges."""
    rows, _, _, _, reduce = node.args
    found = tensor(rows)
    if found is None or found.dim() == 0 or found.size(0) != captured.edges:
        return
    if reduce == "max":
        captured.miss(NAME, node, "the largest by source, and edges are sorted by destination")
        return
    if captured.differentiates(NAME, node):
        return
    flat = _flat(captured, node, rows)
    made = captured.before(node, source_sum, flat, captured.batch_edges)
    if reduce == "mean":
        ptr = captured.facts["col_ptr"]
        count = captured.once(("out degrees", found.dtype), _out_degrees, ptr, found.dtype)
        made = captured.before(node, DIV, made, count)
    made = captured.reshaped(node, made, *(shape(node) or ()))
    captured.replace(node, made, "source_sum")


def _out_degrees(col_ptr: Tensor, dtype: torch.dtype) -> Tensor:
    """``[N + 1]`` -> ``[N, 1]``: the number of edges that leave each node, at least one."""
    return col_ptr.diff().clamp(min=1).to(dtype).unsqueeze(1)


def _origin(index: Any) -> Call | None:
    return index if isinstance(index, Node) else None
