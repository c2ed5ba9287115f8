"""Recognises masks of keys that come from ``to_dense_batch``, in any form.

The mask ``[G, M]`` may appear as ``mask[:, None, None, :]``, as ``~mask`` for ``masked_fill``,
repeated for every head, combined with a mask of queries, or as numbers added to scores, zero and
minus infinity.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch

from staticgraph.nn.context.dense_layout import attendable, placed
from staticgraph.rewrites.attention.axes import Axes, Dim, Stretch, arguments, moved
from staticgraph.rewrites.captured_graph.canonical_ops import Call, dtype, is_call, is_method, shape

# Highest value of a masked score, or of a number added to it: its weight is zero in any dtype.
FORBIDDEN = -1e8
_BOTH = (operator.and_, torch.logical_and, torch.bitwise_and)
_EITHER = (operator.or_, torch.logical_or, torch.bitwise_or)


class KeyMask(NamedTuple):
    """A mask of keys.

    Attributes:
        kind: ``keep`` if True attends, ``leave`` if True does not, ``added`` for numbers.
        axes: the position of its entries in ``[G, M]``.
        layout: the call that placed the nodes in the block.
    """

    kind: str
    axes: Axes
    layout: Call

    def fits(self, queries: Axes) -> bool:
        """Whether each row of scores ``[..., place, place]`` is masked by its own graph's places.

        The mask is broadcast over the scores; ``queries`` are ``[..., place, column]``.
        """
        missing = len(queries.dims) - len(self.axes.dims)
        dims: tuple[Dim, ...] = ((),) * missing + self.axes.dims
        if missing < 0 or dims[-1] != queries.dims[-2] or any(stretch.axis for stretch in dims[-2]):
            return False
        for ours, theirs in zip(dims[:-2], queries.dims[:-2], strict=True):
            if not any(stretch.axis == "graph" for stretch in (*ours, *theirs)):
                continue  # heads: repeated, or broadcast
            if [_graphs(stretch) for stretch in ours] != [_graphs(stretch) for stretch in theirs]:
                return False
        return self.axes.start == 0


def _graphs(stretch: Stretch) -> tuple[int, str, int]:
    """A stretch of graphs unchanged; of any other stretch only its size."""
    return (
        (stretch.size, "graph", stretch.step) if stretch.axis == "graph" else (stretch.size, "", 0)
    )


def key_mask(node: Any) -> KeyMask | None:
    """Reads a node as a mask of keys; None unless it comes from ``to_dense_batch`` alone."""
    if not getattr(node, "args", None):  # not a node, or all arguments by name
        return None
    if is_call(node, attendable):
        layout = node.args[0].args[0] if is_call(node.args[0], operator.getitem) else None
        groups, width = shape(node) or (0, 0)
        if not is_call(layout, placed):
            return None
        return KeyMask("keep", Axes.from_sizes(("graph", groups), ("place", width)), layout)
    if _is_inversion(node):
        mask = key_mask(node.args[0])
        turned = {"keep": "leave", "leave": "keep"}
        if mask is None or mask.kind not in turned:
            return None
        return mask._replace(kind=turned[mask.kind])
    if is_method(node, "bool") or (is_method(node, "to") and dtype(node) is torch.bool):
        return key_mask(node.args[0])
    if is_call(node, *_BOTH, *_EITHER) or is_method(node, "__and__", "__or__"):
        return _of_pairs(node)
    if is_method(node, "masked_fill") or is_call(node, torch.where):
        return _added(node)
    step = moved(node)
    mask = None if step is None else key_mask(step[0])
    axes = None if mask is None or step is None else step[1](mask.axes)
    return None if mask is None or axes is None else mask._replace(axes=axes)


def _is_inversion(node: Any) -> bool:
    if is_call(node, operator.invert, torch.logical_not, torch.bitwise_not):
        return True
    if is_method(node, "__invert__", "logical_not", "bitwise_not"):
        return True
    tests = is_call(node, operator.eq, torch.eq) or is_method(node, "eq", "__eq__")
    other = node.args[1] if tests and len(node.args) > 1 else None
    return isinstance(other, int) and other == 0


def _of_pairs(node: Call) -> KeyMask | None:
    """A mask of keys combined with a mask of queries, whose empty rows are never read."""
    kind = "keep" if is_call(node, *_BOTH) or is_method(node, "__and__") else "leave"
    masks = [key_mask(operand) for operand in node.args]
    number = len(shape(node) or ())
    if len(masks) != 2:
        return None
    for keys, queries in (masks, masks[::-1]):
        if keys is None or queries is None or (keys.kind, queries.kind) != (kind, kind):
            return None
        ours, theirs = keys.axes.dims, queries.axes.dims
        if number < 3 or len(ours) != number or len(theirs) != number:
            return None
        if ours[-1] and not ours[-2] and theirs == (*ours[:-2], ours[-1], ()):
            return keys if same_places(keys.layout, queries.layout) else None
    return None


def _added(node: Call) -> KeyMask | None:
    """Zeros where a key counts, and a forbidding number elsewhere."""
    if is_method(node, "masked_fill"):
        operands = arguments(node, "input", "mask", "value")
        if operands is None:
            return None
        zeros, where, left = operands
        mask = key_mask(where)
        if mask is None or mask.kind != "leave":
            return None
        axes = mask.axes.expand(shape(node) or ())
    else:
        operands = arguments(node, "condition", "input", "other")
        if operands is None:
            return None
        where, zeros, left = operands
        mask = key_mask(where)
        if mask is None:
            return None
        if mask.kind == "leave":
            zeros, left = left, zeros
        axes = mask.axes
    if axes is None or not _is_zero(zeros) or not forbids(left):
        return None
    return KeyMask("added", axes, mask.layout)


def same_places(first: Call, second: Call | None) -> bool:
    """Whether two calls place the same rows in the same block."""
    return first is second or (second is not None and first.args == second.args)


def forbids(number: Any) -> bool:
    """Whether a score with this value gets no weight."""
    constant = number.args[0] if is_number(number) else number
    return isinstance(constant, int | float) and constant <= FORBIDDEN


def is_number(node: Any) -> bool:
    """Whether a node is ``torch.tensor`` of a number."""
    return is_call(node, torch.tensor) and isinstance((*node.args, None)[0], int | float)


def _is_zero(node: Any) -> bool:
    if isinstance(node, int | float):
        return node == 0
    zeros = is_method(node, "new_zeros") or is_call(node, torch.zeros, torch.zeros_like)
    return zeros or (is_number(node) and node.args[0] == 0)
