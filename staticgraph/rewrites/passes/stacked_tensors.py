"""Reads through stacks of tensors.

``torch.stack([row, col])[0]`` is ``row``; a stack of both rows of one pair is the pair, which may
be the batch's own; and the sum over a stack (one part per table, or per layer) is a sum of its
parts.
"""

from __future__ import annotations

from typing import Any

import torch

from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    SELECT,
    Call,
    argument,
    is_call,
    is_float,
    is_method,
    shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured

# Above this number of parts, more than stacks of embeddings or layers have, one call adds faster.
MOST = 16


def unstack(captured: Captured, node: Call) -> None:
    """Replaces a node that selects from a stack, rebuilds a pair, or sums over a stack."""
    if is_call(node, SELECT):
        base, dim, place = node.args
        parts = _parts(base, dim)
        if parts and isinstance(place, int) and not _written(base, node, parts[place]):
            node.replace_all_uses_with(parts[place])
    elif is_call(node, torch.stack):
        _pair(node)
    elif is_call(node, torch.sum) or is_method(node, "sum"):
        _sum(captured, node)


def _pair(node: Call) -> None:
    """Replaces a stack of both rows of ``[2, E]``, in their order, by the pair."""
    parts = _parts(node, 0)
    if len(parts) != 2 or not all(is_call(part, SELECT) for part in parts):
        return
    pair = parts[0].args[0]
    rows = all(part.args == (pair, 0, place) for place, part in enumerate(parts))
    if rows and shape(pair) == shape(node) and not _written(pair, node, *parts):
        node.replace_all_uses_with(pair)


def _sum(captured: Captured, node: Call) -> None:
    by_name = dict(zip(("input", "dim"), node.args, strict=False)) | node.kwargs
    base, dim = by_name.get("input"), by_name.get("dim")
    if len(node.args) > 2 or set(by_name) != {"input", "dim"} or not isinstance(dim, int):
        return
    parts = _parts(base, dim) if is_float(base) else []
    if not 2 <= len(parts) <= MOST or not used_once(base) or _written(base, node, *parts):
        return
    total = parts[0]
    for part in parts[1:]:
        total = captured.before(node, ADD, total, part)
    node.replace_all_uses_with(total)


def _parts(node: Any, dim: int) -> list[Any]:
    """The tensors stacked along a dimension; empty if the node is no such call."""
    sizes = shape(node)
    if not is_call(node, torch.stack) or sizes is None or not node.args:
        return []
    along = argument(node, 1, "dim", 0)
    alike = along % len(sizes) == dim % len(sizes)
    return list(node.args[0]) if alike and isinstance(node.args[0], list | tuple) else []


def _written(*nodes: Any) -> bool:
    """Whether the memory of any of these is changed in place."""
    return any(node.meta.get("written") for node in nodes)
