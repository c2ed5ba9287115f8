"""Rewrites every message that is computed row by row to one pass over the edges: ``neighbours``.

Gathers at either end, what is computed of their rows and of edges' own, and what reduces it by the
batch's own destinations (:mod:`staticgraph.rewrites.neighbours.reading`) become a program
(:mod:`staticgraph.kernels.neighbours.program`). It ends at a gather, whose operand has rows of
nodes, and at every operation that is none of rows: a product with a weight, a norm, a dropout. What
such an operation reads of a group is another result of it, one row per edge. What a node's sum is
added to, its own term, is part of the program, too.

A linear layer of gathered rows, or of a concatenation of them, is moved to the nodes before
(:mod:`staticgraph.rewrites.neighbours.edge_terms`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Node

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours import Builder, Result, neighbours_of
from staticgraph.kernels.neighbours.derivative import accompanied, derivative
from staticgraph.kernels.neighbours.program import SIMPLE, Program, known
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    DIV,
    GATHER,
    LINEAR,
    MUL,
    SCATTER,
    Call,
    added_to,
    dtype,
    is_call,
    is_fenced,
    is_float,
    said,
    shape,
    tensor,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype
from staticgraph.rewrites.neighbours.edge_operands import Operands, operands
from staticgraph.rewrites.neighbours.edge_terms import is_cat, stacked
from staticgraph.rewrites.neighbours.moments import is_square, means, spread
from staticgraph.rewrites.neighbours.reading import Group, Reading
from staticgraph.rewrites.neighbours.row_operations import NotByRow, leaf, row_calls, write
from staticgraph.rewrites.neighbours.softmax import without_loops
from staticgraph.rewrites.passes.eliminate import drop_unread

NAME = "neighbours"
# Parts of the names of operations whose order matters: they draw random numbers.
_DRAWS = ("drop", "rand", "bernoulli", "normal", "uniform", "multinomial", "gumbel")
# Numbers of all values of a program, above which compiling it would take seconds: with one matrix
# per edge (NNConv), 96 columns have 28,032.
MOST_NUMBERS = 1 << 15


def rewrite(captured: Captured) -> None:
    """Rewrites all messages that a gradient or a reduction makes worth it."""
    if not captured.facts:
        return
    means(captured)
    _means_by_source(captured)
    if captured.target.device == "cpu":
        move_linear(captured)
    reading = Reading(captured)
    for group in reading.groups():
        if not _insert_program(captured, reading, group) and group.rows:
            for node in group.reductions:  # of rows that torch computes
                _insert_program(captured, reading, Group([], [node]))
    drop_unread(captured.graph)
    for node in captured.calls(GATHER):
        if node in reading.ends and reading.trains([node]):
            _insert_program(captured, reading, Group([node], []))
        elif captured.index(node.args[2]) == "batch" and captured.target.device == "cpu":
            _by_graph(captured, node)
    for node in captured.calls(SCATTER):
        _record(captured, node)


def _record(captured: Captured, node: Call) -> None:
    """Records why a reduction over edges stays as it is."""
    index = node.args[1]
    if not is_float(node) or node.args[3] != captured.nodes:
        return
    if captured.index(index) is None:
        why = index if isinstance(index, Node) else None
        captured.miss(NAME, node, "its index is not the batch's own", why)
    elif captured.index(index) == "src":
        reason = f"the {node.args[4]} by source, and edges are sorted by destination"
        captured.miss(NAME, node, reason)


def _means_by_source(captured: Captured) -> None:
    """Rewrites means by the sources of edges to sums over the number of edges."""
    for node in captured.calls(SCATTER):
        rows, index, dim, groups, reduce = node.args
        found = tensor(rows)
        ours = captured.index(index) == "src" and dim == 0 and groups == captured.nodes
        if not ours or reduce != "mean" or found is None or not is_float(node):
            continue
        ptr = captured.facts["col_ptr"]
        count = captured.once(("out degrees", found.dtype), _out_degrees, ptr, found.dtype)
        count = captured.reshaped(node, count, -1, *(1,) * (found.dim() - 1))
        total = captured.before(node, SCATTER, rows, index, 0, groups, "sum")
        captured.replace(node, captured.before(node, DIV, total, count))


def _out_degrees(col_ptr: Tensor, dtype: torch.dtype) -> Tensor:
    """``[N + 1]`` -> ``[N]``: the number of edges that leave each node, at least one."""
    return col_ptr.diff().clamp(min=1).to(dtype)


def _by_graph(captured: Captured, node: Call) -> None:
    """Rewrites rows of graphs that nodes read, ``x[batch]``: backward sums a graph's nodes."""
    rows, found = node.args[0], tensor(node)
    sizes = shape(rows)
    if sizes is None or sizes[0] != captured.graphs or not is_float(node):
        return
    if found is None or not found.requires_grad:
        return
    builder = Builder()
    program = builder.program([Result(builder.operand("target", sizes[1:]), "rows")])
    batch, ptr = (cast(Any, captured.facts[name]) for name in ("batch", "ptr"))
    edges = Edges(batch, batch, ptr, ptr, ptr)
    made = captured.before(node, neighbours_of, known(program), [rows], [], edges)
    captured.replace(node, captured.item(node, made, 0, node), NAME)


def move_linear(captured: Captured) -> None:
    """Moves linear layers of gathered rows to the nodes, and stacks of them, for towers."""
    for node in reversed(list(captured.graph.nodes)):
        found = shape(node) or (0,)
        if not node.users or len(found) not in (2, 3) or found[0] != captured.edges:
            continue
        moves = is_call(node, LINEAR, torch.stack) and is_float(node)
        towers = stacked(captured, node) if moves else []
        if not any(terms.split for terms in towers):
            continue
        ends = operands(captured, node, towers)
        if ends is not None and same_dtype(ends.source, ends.target, ends.edge, node):
            rows = captured.reshaped(node, _gathered(captured, node, ends), *found)
            captured.replace(node, rows)
    drop_unread(captured.graph)


def _gathered(captured: Captured, node: Call, ends: Operands) -> Call:
    """The sum of the rows that edges read of operands."""
    parts = []
    for rows, end in ((ends.target, 1), (ends.source, 0)):
        if rows is not None:
            parts.append(captured.before(node, GATHER, rows, 0, captured.end(end)))
    if ends.edge is not None:
        edge = ends.edge
        if ends.code is not None:
            edge = captured.before(node, GATHER, edge, 0, ends.code)
        parts.append(edge)
    total = parts[0]
    for part in parts[1:]:
        total = captured.before(node, ADD, total, part)
    return total


class _Read(NamedTuple):
    """A result of a program, the node that it replaces, and the last one of a chain from there."""

    result: Result
    node: Call
    last: Call

    @property
    def users(self) -> list[Call]:
        """The nodes behind what is replaced; of rows, those that read them."""
        return list(self.node.users) if self.result.reduction == "rows" else [self.last]


class _Writer:
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

    def write(self) -> list[_Read]:
        """Writes the values, and returns what is read of them."""
        for node in self.group.rows:
            self._places[node] = self._row(node)
        nodes = {*self.group.rows, *self.group.reductions}
        found: list[_Read] = []
        for node in self.group.reductions:
            how = self.reading.reductions[node]
            result = Result(self._edge(node.args[0]), how)
            if how == "softmax":
                weight = self._edge(node.args[1])
                own = [
                    -1 if one is None else self._own(one, shape(like) or ())
                    for like, one in zip(node.args[:2], node.args[4:], strict=True)
                ]
                result = Result(result.value, how, own[0], weight, own[1])
            found.append(_Read(result, node, node))
        for node in self.group.rows:
            rest = any(user not in nodes for user in node.users)
            whole = isinstance(self._places[node], int)
            if rest and whole and self.bases:
                found.append(_Read(Result(self._places[node], "rows"), node, node))
        return _join_moments(self.builder, found)

    def add_own_terms(self, found: list[_Read]) -> list[_Read]:
        """The results, sums together with what they are added to, unless that follows from them."""
        replaced = {one.node for one in found}
        order = {node: at for at, node in enumerate(self.captured.graph.nodes)}
        first = min((order[one.node] for one in found), default=0)
        for at, (result, node, _) in enumerate(found):
            if result.reduction != "sum":
                continue
            total, own = added_to(node)
            if total is None or dtype(total) != dtype(node) or not isinstance(own, Node):
                continue
            if dtype(own) != dtype(node) or _depends(own, replaced, order, first):
                continue
            start = self._own(own, (0, *(shape(node) or ())[1:]))
            found[at] = _Read(result._replace(start=start), node, total)
        return found

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
        for one in calls.given:
            if one in self._places or one in self.reading.ends:
                arguments[one] = self._edge(one)
            else:
                now = self.reading.now.get(one, one)
                place, row = leaf(now, calls, self.captured.edges, "edge")
                arguments[one] = self._operand(place, row, now)
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
            kept = len(self.builder.operands), list(self.bases), dict(self._operands)
            try:
                arguments: dict[Call, int] = {}
                for one in calls.given:
                    place, row = leaf(one, calls, nodes, "target")
                    if place == "all":
                        arguments[one] = self.builder.view(self._of_all(one), row)
                    else:
                        arguments[one] = self._of_nodes(one)
                return write(self.builder, calls, nodes, arguments)  # pyright: ignore
            except NotByRow:
                del self.builder.operands[kept[0] :]
                self.bases, self._operands = kept[1:]
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
        one = left.pop()
        if one in on:
            return True
        more = [o for o in one.all_input_nodes if o not in seen and order[o] >= first]
        seen.update(more)
        left += more
    return False


def _insert_program(captured: Captured, reading: Reading, group: Group) -> bool:
    """Replaces what is read of a group by the results of its program; returns whether it did."""
    writer = _Writer(captured, reading, group)
    results = writer.add_own_terms(writer.write())
    builder, bases, codes = writer.builder, writer.bases, writer.codes
    if not results or any(one.meta.get("written") for one in (*bases, *codes)):
        return False
    program = builder.program(list(dict.fromkeys(one.result for one in results)))
    size = sum(math.prod(value.shape) for value in program.values)
    if size > MOST_NUMBERS or not all(map(is_float, [*bases, *(one.node for one in results)])):
        return False
    if not _fits(captured, program, results):
        return False
    users = {user for one in results for user in one.users} - {*group.rows, *group.reductions}
    users |= {one.last for one in results if one.result.reduction != "rows"}
    order = {node: at for at, node in enumerate(captured.graph.nodes)}
    anchor = min(users, key=order.__getitem__)
    while is_fenced(anchor):  # before the region that it is in
        anchor = anchor.prev
    moved = _late(order, anchor, [*bases, *codes])
    if moved is None:
        return False
    for one in moved:
        anchor.prepend(one)
    results = _side_by_side(results)
    unique = {result: at for at, result in enumerate(dict.fromkeys(one.result for one in results))}
    program = builder.program(list(unique))
    call = captured.before(
        anchor,
        neighbours_of,
        known(program),
        bases,
        codes,
        captured.batch_edges,
        like=results[0].node,
    )
    items = {one: captured.item(anchor, call, at, call) for one, at in unique.items()}
    for result, old, last in results:
        rows, new = old.args[0] if old.args else None, items[result]
        if dtype(new) != dtype(last):
            new = captured.before(anchor, torch.Tensor.to, new, dtype(last), like=old)
        if result.reduction != "rows" and reading.is_apart(rows):
            captured.miss(NAME, old, f"{said(rows)} is computed apart from it", rows)
        if captured.replace(old, new, NAME, last=last):
            reading.now[old] = new
    return True


def _fits(captured: Captured, program: Program, results: list[_Read]) -> bool:
    """Whether a program and its derivative can be written for the device; records why not.

    On CUDA a program that reduces nothing is left to torch, whose gathers a compiler fuses.
    """
    if captured.target.device == "cpu":
        return True
    if all(one.reduction == "rows" for one in program.results):
        return False
    from staticgraph.kernels.neighbours.gpu import supports  # imports Triton

    whole = accompanied(program)
    everything = tuple(range(len(program.results))), tuple(range(len(program.operands)))
    for one in (whole, derivative(whole, *everything).program):
        if (reason := supports(one)) is not None:
            captured.miss(NAME, results[0].node, reason)
            return False
    return True


def _side_by_side(results: list[_Read]) -> list[_Read]:
    """Results with those that are concatenated, and read by nothing else, as one."""
    by_value: dict[int, list[_Read]] = {}
    for one in results:
        if one.result.reduction in SIMPLE and one.result.start < 0:
            by_value.setdefault(one.result.value, []).append(one)
    for place, parts in by_value.items():
        cat = next((user for user in parts[0].node.users if is_cat(user)), None)
        names = {one.node: one.result.reduction for one in parts}
        if cat is None or len(parts) < 2 or set(cat.args[0]) != set(names):
            continue
        others = {user for node in names for user in node.users} - {cat}
        spreads = {"var", "std"} & {*names.values()}
        alone = not others or (spreads and all(map(is_square, others)))
        if alone and len(cat.args[0]) == len(parts):
            whole = Result(place, "+".join(names[node] for node in cat.args[0]))
            results = [one for one in results if one.node not in names]
            results.append(_Read(whole, cat, cat))
    return results


def _late(order: dict[Call, int], anchor: Call, needed: Iterable[Call]) -> list[Call] | None:
    """The nodes behind ``anchor`` that ``needed`` are computed from, in order; None if one of them
    must stay where it is."""
    limit, left, found = order[anchor], list(needed), set()
    while left:
        node = left.pop()
        if node in found or order[node] < limit:
            continue
        fixed = any(one.meta.get("written") for one in (node, *node.all_input_nodes))
        if fixed or is_fenced(node) or node.is_impure() or any(one in said(node) for one in _DRAWS):
            return None
        found.add(node)
        left += node.all_input_nodes
    return sorted(found, key=order.__getitem__)


def _join_moments(builder: Builder, results: list[_Read]) -> list[_Read]:
    """Replaces means of a message and of its squares by the variance that is computed of them."""
    averages = {one.result.value: one for one in results if one.result.reduction == "mean"}
    for place, mean in averages.items():
        square = averages.get(builder.point("mul", place, place))
        found = None if square is None else spread(square.node, mean.node)
        if found is not None:
            results.remove(square)  # pyright: ignore[reportArgumentType]
            results.append(_Read(Result(place, found[0]), found[1], found[1]))
            if all(map(is_square, mean.node.users)):
                results.remove(mean)
    return results
