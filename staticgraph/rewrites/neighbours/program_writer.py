"""Writes the program of a group of nodes: its values, operands and codes, and what is read of it.

A sum together with what it is added to, a node's own term, is one result.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import Node

from staticgraph.kernels.neighbours import Builder, Result
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    MUL,
    Call,
    added_to,
    dtype,
    is_call,
    is_fenced,
    shape,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.neighbours.edge_groups import Group, Reading
from staticgraph.rewrites.neighbours.moments import is_square, spread
from staticgraph.rewrites.neighbours.row_operations import NotByRow, leaf, row_calls, write
from staticgraph.rewrites.neighbours.softmax import without_loops


class Read(NamedTuple):
    """A result of a program, the node that it replaces, and the last one of a chain from there."""

    result: Result
    node: Call
    last: Call

    @property
    def users(self) -> list[Call]:
        """The nodes behind what is replaced; of rows, those that read them."""
        return list(self.node.users) if self.result.reduction == "rows" else [self.last]


class ProgramWriter:
    """Writes a group's program: its values, operands and codes."""

    def __init__(self, captured: Captured, reading: Reading, group: Group) -> None:
        self.captured: Captured = captured
        self.reading: Reading = reading
        self.group: Group = group
        self.builder: Builder = Builder()
        self.bases: list[Call] = []
        self.codes: list[Call] = []
        self._operands: dict[Any, int] = {}
        self._places: dict[Call, Any] = {}

    def write(self) -> list[Read]:
        """Writes the values, and returns what is read of them."""
        for node in self.group.rows:
            self._places[node] = self._row(node)
        nodes = {*self.group.rows, *self.group.reductions}
        reads: list[Read] = []
        for node in self.group.reductions:
            how = self.reading.reductions[node]
            result = Result(self._edge(node.args[0]), how)
            if how == "softmax":
                weight = self._edge(node.args[1])
                starts = [
                    -1 if start is None else self._own(start, shape(like) or ())
                    for like, start in zip(node.args[:2], node.args[4:], strict=True)
                ]
                result = Result(result.value, how, starts[0], weight, starts[1])
            reads.append(Read(result, node, node))
        for node in self.group.rows:
            rest = any(user not in nodes for user in node.users)
            whole = isinstance(self._places[node], int)
            if rest and whole and self.bases:
                reads.append(Read(Result(self._places[node], "rows"), node, node))
        return _join_moments(self.builder, reads)

    def add_own_terms(self, reads: list[Read]) -> list[Read]:
        """The results, sums together with what they are added to, unless that follows from them."""
        replaced = {read.node for read in reads}
        order = {node: place for place, node in enumerate(self.captured.graph.nodes)}
        first = min((order[read.node] for read in reads), default=0)
        for number, (result, node, _) in enumerate(reads):
            if result.reduction != "sum":
                continue
            total, addend = added_to(node)
            if total is None or dtype(total) != dtype(node) or not isinstance(addend, Node):
                continue
            if dtype(addend) != dtype(node) or _depends(addend, replaced, order, first):
                continue
            start = self._own(addend, (0, *(shape(node) or ())[1:]))
            reads[number] = Read(result._replace(start=start), node, total)
        return reads

    def _operand(self, place: str, row: tuple[int, ...], base: Call, code: int = -1) -> int:
        """The value of an operand, added once."""
        key = place, base, code
        if key not in self._operands:
            self.bases.append(base)
            self._operands[key] = self.builder.operand(place, row, code)
        return self._operands[key]

    def _gathered(self, node: Call) -> int:
        """The value of a gather."""
        base, _, index = node.args
        place, code = self.reading.ends[node], -1
        if place == "table":
            if index not in self.codes:
                self.codes.append(index)
            code = self.codes.index(index)
        return self._operand(place, tuple((shape(base) or ())[1:]), base, code)

    def _edge(self, node: Call) -> int:
        """The value of rows of edges."""
        if node in self._places:
            return self._places[node]
        if node in self.reading.ends and not node._erased:
            return self._gathered(node)
        now = self.reading.now.get(node, node)
        return self._operand("edge", tuple((shape(now) or ())[1:]), now)

    def _row(self, node: Call) -> Any:
        """The value of a node of the group."""
        if node in self.reading.ends:
            return self._gathered(node)
        calls = self.reading.calls[node]
        if is_call(node, without_loops):
            loop = self.builder.loop()
            return self.builder.point("where", loop, -math.inf, self._edge(node.args[0]))
        if not calls.calls:
            return self._places[node.args[0]][node.args[1]]
        arguments: dict[Call, int] = {}
        for operand in calls.operands:
            if operand in self._places or operand in self.reading.ends:
                arguments[operand] = self._edge(operand)
            else:
                now = self.reading.now.get(operand, operand)
                place, row = leaf(operand, calls, self.captured.edges, "edge")
                arguments[operand] = self._operand(place, row, now)
        return write(self.builder, calls, self.captured.edges, arguments)

    def _own(self, node: Call, like: tuple[int, ...]) -> int:
        """The value of rows of nodes, of a shape like those of edges; what computes them row by
        row, and is read by nothing else, is part of it."""
        place = self._of_nodes(node)
        return self.builder.expand(place, tuple(like[1:]))

    def _of_nodes(self, node: Call) -> int:
        nodes = self.captured.nodes
        calls = None
        usable = used_once(node) and not is_fenced(node) and not node.meta.get("written")
        if usable and (shape(node) or (0,))[0] == nodes and node.op.startswith("call"):
            calls = row_calls(node)
        if calls is not None and calls.calls and isinstance(calls.result, Tensor):
            state = len(self.builder.operands), list(self.bases), dict(self._operands)
            try:
                arguments: dict[Call, int] = {}
                for operand in calls.operands:
                    place, row = leaf(operand, calls, nodes, "target")
                    if place == "all":
                        arguments[operand] = self.builder.view(self._of_all(operand), row)
                    else:
                        arguments[operand] = self._of_nodes(operand)
                return write(self.builder, calls, nodes, arguments)  # pyright: ignore
            except NotByRow:
                del self.builder.operands[state[0] :]
                self.bases, self._operands = state[1:]
        sizes = shape(node) or ()
        if sizes[:1] != (nodes,):
            return self._of_all(node)
        for end in ("source", "target"):
            if (end, node, -1) in self._operands:
                return self._operands[end, node, -1]
        return self._operand("target", sizes[1:], node)

    def _of_all(self, node: Call) -> int:
        """The value of one row for all nodes, such as ``1 + eps``."""
        if is_call(node, ADD, MUL) and used_once(node) and isinstance(node.args[1], int | float):
            name = "add" if is_call(node, ADD) else "mul"
            return self.builder.point(name, self._of_all(node.args[0]), float(node.args[1]))
        sizes = shape(node) or ()
        return self._operand("all", sizes[1:] if sizes[:1] == (1,) else sizes, node)


def _depends(node: Call, on: set[Call], order: dict[Call, int], first: int) -> bool:
    """Whether a node is computed from others, none of which is before the place ``first``."""
    left, seen = [node], {node}
    while left:
        ancestor = left.pop()
        if ancestor in on:
            return True
        more = [o for o in ancestor.all_input_nodes if o not in seen and order[o] >= first]
        seen.update(more)
        left += more
    return False


def _join_moments(builder: Builder, results: list[Read]) -> list[Read]:
    """Replaces means of a message and of its squares by the variance that is computed of them."""
    averages = {read.result.value: read for read in results if read.result.reduction == "mean"}
    for place, mean in averages.items():
        square = averages.get(builder.point("mul", place, place))
        deviation = None if square is None else spread(square.node, mean.node)
        if deviation is not None:
            results.remove(square)  # pyright: ignore[reportArgumentType]
            results.append(Read(Result(place, deviation[0]), deviation[1], deviation[1]))
            if all(map(is_square, mean.node.users)):
                results.remove(mean)
    return results
