"""Reads which nodes of a captured graph compute rows of edges from rows, and what reduces them.

Nodes that have no other way between them than through rows of edges are grouped, as many as
possible, with the reductions of their results; each group can be one program.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from staticgraph.kernels.neighbours import Builder
from staticgraph.rewrites.captured_graph.canonical_ops import (
    GATHER,
    SCATTER,
    Call,
    is_call,
    is_fenced,
    is_float,
    shape,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.neighbours.edge_terms import is_small
from staticgraph.rewrites.neighbours.pools import REDUCTIONS
from staticgraph.rewrites.neighbours.row_operations import (
    NotByRow,
    RowCalls,
    leaf,
    row_calls,
    write,
)
from staticgraph.rewrites.neighbours.softmax import log_sum, weighed_sum, without_loops

_VIEWS = ("aten::view", "aten::_unsafe_view", "aten::unsqueeze", "aten::squeeze", "aten::alias")


class Group(NamedTuple):
    """What can be one program: nodes that compute rows of edges, and reductions of rows."""

    rows: list[Call]
    reductions: list[Call]


def index_of(reduction: Call) -> Call:
    """The index by which rows of edges are reduced."""
    return reduction.args[2 if is_call(reduction, weighed_sum) else 1]


class Reading:
    """Which nodes of a graph compute rows of edges from rows.

    Attributes:
        calls: those nodes, and what they call.
        ends: gathers, and what they gather: ``source``, ``target`` or ``table``.
        reductions: what reduces rows of edges, and how.
        now: results that replaced nodes.
    """

    def __init__(self, captured: Captured) -> None:
        self.captured: Captured = captured
        self.calls: dict[Call, RowCalls] = {}
        self.ends: dict[Call, str] = {}
        self.reductions: dict[Call, str] = {}
        self.now: dict[Call, Call] = {}
        for node in captured.graph.nodes:
            if (end := self._end(node)) is not None:
                self.ends[node] = end
            elif (how := self._reduction(node)) is not None:
                self.reductions[node] = how
            elif self._is_row(node):
                self._try(node)
        for node, calls in list(self.calls.items()):
            if self._is_shared_view(calls, node):
                del self.calls[node]

    def _usable(self, node: Call) -> bool:
        fake = tensor(node)
        return (
            fake is not None
            and fake.dim() > 0
            and fake.size(0) == self.captured.edges
            and not is_fenced(node)
            and not node.meta.get("written")
            and bool(node.users)
        )

    def _end(self, node: Call) -> str | None:
        if not is_call(node, GATHER) or not self._usable(node) or not is_float(node):
            return None
        base, _, index = node.args
        which = self.captured.index(index)
        if (shape(base) or (0,))[0] == self.captured.nodes_at(which):
            return "source" if which == "src" else "target"
        on_cpu = self.captured.target.device == "cpu"
        return "table" if on_cpu and is_small(self.captured, node) else None

    def _reduction(self, node: Call) -> str | None:
        if not is_call(node, SCATTER, weighed_sum, log_sum) or not node.users:
            return None
        if not is_float(node) or (shape(node.args[0]) or (0,))[0] != self.captured.edges:
            return None
        which = self.captured.index(index_of(node))
        if not is_call(node, SCATTER):
            how = "softmax" if is_call(node, weighed_sum) else "logsumexp"
            return how if which == "dst" else None
        _, _, dim, groups, reduce = node.args
        if dim != 0 or groups != self.captured.nodes_at(which):
            return None
        if which == "src":
            return "source_sum" if reduce in ("sum", "add") else None
        return REDUCTIONS.get(reduce) if which == "dst" else None

    def _is_row(self, node: Call) -> bool:
        value = node.meta.get("example_value")
        if isinstance(value, (tuple, list)):
            return bool(node.users) and all(
                isinstance(part, torch.Tensor) and part.dim() > 0 for part in value
            )
        return self._usable(node) and node.op in ("call_function", "call_method")

    def _try(self, node: Call) -> None:
        """Notes a node's operations if all of them are of rows."""
        if is_call(node, without_loops):
            if self.captured.index(node.args[2]) == "dst":
                self.calls[node] = RowCalls({node.args[0]: torch.empty(0)}, [], None)
            return
        if is_call(node, operator.getitem) and isinstance(node.args[1], int):
            parts = self.calls.get(node.args[0])
            if parts is not None and isinstance(parts.result, (tuple, list)):
                self.calls[node] = RowCalls({}, [], None)
                return
        calls = row_calls(node)
        if calls is None or not calls.calls:
            return
        builder, places = Builder(), {}
        try:
            for operand, stand in calls.operands.items():
                places[operand] = builder.operand(
                    *leaf(operand, calls, self.captured.edges, "edge")
                )
                if not stand.is_floating_point() and operand not in self.calls:
                    return
            write(builder, calls, self.captured.edges, places)
        except NotByRow:
            return
        self.calls[node] = calls

    def _is_shared_view(self, calls: RowCalls, node: Call) -> bool:
        """Whether a node shows the rows of an operand in another shape, to several readers: as a
        result, they would be copied."""
        views = all(call.name in _VIEWS for call in calls.calls) and bool(calls.calls)
        inner = any(operand in self.calls or operand in self.ends for operand in calls.operands)
        return views and not inner and len(node.users) > 1

    def is_apart(self, node: Any) -> bool:
        """Whether an operation of the model's that is none of rows computes rows of edges."""
        if not isinstance(node, Node) or node in self.calls or node in self.ends:
            return False
        return node.op.startswith("call") and not node.meta.get("inserted")

    # ------------------------------------------------------------------ groups

    def groups(self) -> list[Group]:
        """Groups of rows and reductions, in the order of the graph.

        A node's level is the number of operations that are none of rows on the way to it from
        others that are: nodes of one level have no way between them that leads out of the group.
        """
        levels = self._levels()
        parent: dict[Any, Any] = {}

        def root(node: Any) -> Any:
            """What stands for a group."""
            parent.setdefault(node, node)
            while parent[node] is not node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        for node in self.captured.graph.nodes:
            if node not in self.calls and node not in self.reductions:
                continue
            root(node)
            for operand in node.all_input_nodes:
                if operand in self.calls and levels[operand] == levels[node]:
                    parent[root(operand)] = root(node)
                elif (
                    node in self.reductions
                    and operand is node.args[0]
                    and operand not in self.calls
                ):
                    parent[root(node)] = root((operand, levels[node]))
        groups: dict[Any, Group] = {}
        for node in list(parent):
            group = groups.setdefault(root(node), Group([], []))
            if node in self.calls:
                group.rows.append(node)
            elif node in self.reductions:
                group.reductions.append(node)
        return [group for group in groups.values() if self._pays(group)]

    def _levels(self) -> dict[Call, int]:
        levels: dict[Call, int] = {}
        for node in self.captured.graph.nodes:
            ours = node in self.calls or node in self.reductions
            levels[node] = max(
                (
                    levels[operand]
                    + (operand in self.reductions or (operand in self.calls and not ours))
                    for operand in node.all_input_nodes
                ),
                default=0,
            )
        for node in reversed(list(self.calls)):  # as late as what reads it allows
            if all(user in self.calls or user in self.reductions for user in node.users):
                levels[node] = min(levels[user] for user in node.users)
        for node in self.calls:  # a part is where its tuple is
            parts = self.calls.get(node.args[0]) if is_call(node, operator.getitem) else None
            if parts is not None and isinstance(parts.result, (tuple, list)):
                levels[node] = levels[node.args[0]]
        return levels

    def _pays(self, group: Group) -> bool:
        """Whether a group gathers rows of nodes and needs a gradient, or reduces rows."""
        return bool(group.reductions) or self.trains(group.rows)

    def trains(self, nodes: list[Call]) -> bool:
        """Whether nodes gather rows of nodes, and need a gradient."""
        gathered = {candidate for node in nodes for candidate in (node, *node.all_input_nodes)}
        near = any(self.ends.get(candidate, "table") != "table" for candidate in gathered)
        return near and any(getattr(tensor(node), "requires_grad", False) for node in nodes)
