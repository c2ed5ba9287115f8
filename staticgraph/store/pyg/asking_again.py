"""Decides whether an index refers to nodes or edges if every graph has equally many of both.

Problem: in a data set of rings, ``__inc__`` returns the same numbers whether it counts nodes or
edges, but the difference matters, since edges are sorted and padded separately from nodes. Idea:
call ``__inc__`` again on a copy of a graph with one more edge, and on a copy with one more node.
The increment grows with one or the other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from staticgraph.errors import BadGraph
from staticgraph.schema import Level
from staticgraph.store.pyg.rules import said_by

# The tensor fields from which PyG derives ``num_edges`` and ``num_nodes``
# (torch_geometric/data/storage.py, E_KEYS and N_KEYS).
OF_EDGES = ("edge_index", "edge_attr", "edge_weight", "edge_type")
OF_NODES = ("x", "feat", "pos", "batch", "node_type", "n_id")


def counted_by(data: Any, key: str, number: int) -> tuple[Level, ...] | None:
    """Returns the level that a field's values refer to: ``node``, ``edge``, or ``""`` for neither.

    The tuple has one entry for all scalars of a row, or one per scalar. None if the graph's class
    gives no clear answer.

    Args:
        data: a graph with as many nodes as edges, whose class has rules of its own.
        key: the field's name.
        number: the graph's index, for messages.
    """
    with_edge = _asked(_with_edge(data), key, number)
    with_node = _asked(_with_node(data), key, number)
    now = _asked(data, key, number)
    if with_edge is None or with_node is None or now is None:
        return None
    width = max(len(with_edge), len(with_node), len(now))
    levels: list[Level] = []
    for edge, node, before in zip(
        *(_spread(a, width) for a in (with_edge, with_node, now)), strict=True
    ):
        if edge != before and node != before:
            return None
        levels.append("edge" if edge != before else "node" if node != before else "")
    return tuple(levels[:1] if len(set(levels)) == 1 else levels)


def _asked(data: Any, key: str, number: int) -> tuple[int, ...] | None:
    try:
        return said_by(data, key, torch.atleast_1d(data[key]), number, data._store).increments
    except BadGraph:  # a rule that fails on the copy tells nothing
        return None


def _spread(steps: tuple[int, ...], width: int) -> Iterable[int]:
    return steps if len(steps) == width else (steps or (0,)) * width


def _with_edge(data: Any) -> Any:
    """Returns a copy with one more edge."""
    more = copy.copy(data)
    for name in OF_EDGES:
        value = data.get(name) if name in data else None
        if isinstance(value, Tensor) and value.dim():
            more[name] = _longer(value, -1 if name == "edge_index" else 0)
    return more


def _with_node(data: Any) -> Any:
    """Returns a copy with one more node."""
    more = copy.copy(data)
    for name in OF_NODES:
        value = data.get(name) if name in data else None
        if isinstance(value, Tensor) and value.dim():
            more[name] = _longer(value, 0)
    more.num_nodes = int(data.num_nodes) + 1
    return more


def _longer(value: Tensor, dim: int) -> Tensor:
    shape = list(value.shape)
    shape[dim] = 1
    return torch.cat([value, value.new_zeros(shape)], dim=dim)
