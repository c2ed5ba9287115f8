"""Rewrites every message that is computed row by row to one pass over the edges: ``neighbours``.

Gathers at either end, what is computed of their rows and of edges' own, and what reduces it by the
batch's own destinations: these nodes of the graph are grouped, as large as possible, and each group
is a program (:mod:`staticgraph.kernels.neighbours.program`). It ends at a gather, whose operand has
rows of nodes, and at every operation that is none of rows: a product with a weight, a norm, a
dropout. What such an operation reads of a group is another result of it, one row per edge.

A linear layer of gathered rows, or of a concatenation of them, is moved to the nodes before
(:mod:`staticgraph.rewrites.messages.edge_terms`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any, cast

import torch

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours import Builder, Result, neighbours_of
from staticgraph.kernels.neighbours.derivative import accompanied, derivative
from staticgraph.kernels.neighbours.program import INTO, Program, known
from staticgraph.rewrites.aggregation.neighbour_sum import Message, message
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    GATHER,
    LINEAR,
    Call,
    dtype,
    is_call,
    is_fenced,
    is_float,
    said,
    shape,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype
from staticgraph.rewrites.messages.edge_operands import Operands, operands
from staticgraph.rewrites.messages.edge_terms import is_cat, is_small, stacked
from staticgraph.rewrites.neighbours.moments import is_square, means, spread
from staticgraph.rewrites.neighbours.row_operations import NotByRow, RowCalls, row_calls, write
from staticgraph.rewrites.passes.eliminate import drop_unread

NAME = "neighbours"
_REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "min": "min", "max": "max"}
# Parts of the names of operations whose order matters: they draw random numbers.
_DRAWS = ("drop", "rand", "bernoulli", "normal", "uniform", "multinomial", "gumbel")
_VIEWS = ("aten::view", "aten::_unsafe_view", "aten::unsqueeze", "aten::squeeze", "aten::alias")
# Numbers of all values of a program, above which compiling it would take seconds: with one matrix
# per edge (NNConv), 96 columns have 28,032.
MOST_NUMBERS = 1 << 15


def rewrite(captured: Captured) -> None:
    """Rewrites all messages that a gradient or a reduction makes worth it."""
    if not captured.facts:
        return
    means(captured)
    if captured.target.device == "cpu":
        move_linear(captured)
    reading = _Reading(captured)
    for group in reading.groups():
        _insert_program(captured, reading, group)
    drop_unread(captured.graph)
    for node in captured.calls(GATHER):
        if reading.left & set(node.users):
            continue
        if node in reading.ends and reading.pays([node]):
            _insert_program(captured, reading, [node])
        elif captured.index(node.args[2]) == "batch" and captured.target.device == "cpu":
            _by_graph(captured, node)


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


class _Reading:
    """Which nodes of a graph compute rows of edges from rows, and how they are grouped."""

    def __init__(self, captured: Captured) -> None:
        self.captured: Captured = captured
        self.calls: dict[Call, RowCalls] = {}
        self.ends: dict[Call, str] = {}  # gathers: source, target or table
        self.left: set[Call] = set()  # of messages for which there is another operator
        self.now: dict[Call, Call] = {}  # results that replaced nodes
        for node in captured.graph.nodes:
            end = self._end(node)
            if end is not None:
                self.ends[node] = end
            elif self._is_row(node):
                self._try(node)
        for node in [
            node for node, calls in self.calls.items() if self._is_shared_view(calls, node)
        ]:
            del self.calls[node]

    def _usable(self, node: Call) -> bool:
        found = tensor(node)
        return (
            found is not None
            and found.dim() > 0
            and found.size(0) == self.captured.edges
            and not is_fenced(node)
            and not node.meta.get("written")
            and bool(node.users)
        )

    def _end(self, node: Call) -> str | None:
        if not is_call(node, GATHER) or not self._usable(node) or not is_float(node):
            return None
        base, _, index = node.args
        which = self.captured.index(index)
        if which in ("src", "dst") and (shape(base) or (0,))[0] == self.captured.nodes:
            return "source" if which == "src" else "target"
        if is_small(self.captured, node):
            return "table"
        return None

    def _is_row(self, node: Call) -> bool:
        value = node.meta.get("example_value")
        if isinstance(value, (tuple, list)):
            return bool(node.users) and all(
                isinstance(one, torch.Tensor) and one.dim() > 0 for one in value
            )
        return self._usable(node) and node.op in ("call_function", "call_method")

    def _try(self, node: Call) -> None:
        """Notes a node's operations if all of them are of rows."""
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
            for one, stand in calls.given.items():
                places[one] = builder.operand(*self.leaf(one, calls))
                if not stand.is_floating_point() and one not in self.calls:
                    return
            write(builder, calls, self.captured.edges, places)
        except NotByRow:
            return
        self.calls[node] = calls

    def _is_shared_view(self, calls: RowCalls, node: Call) -> bool:
        """Whether a node shows the rows of an operand in another shape, to several readers: as a
        result, they would be copied."""
        views = all(call.name in _VIEWS for call in calls.calls) and bool(calls.calls)
        inner = any(one in self.calls or one in self.ends for one in calls.given)
        return views and not inner and len(node.users) > 1

    def leaf(self, node: Call, calls: RowCalls) -> tuple[str, tuple[int, ...]]:
        """Where the rows of an operand of these calls are, and their shape."""
        found = shape(node) or ()
        if found and len(found) == max(stand.dim() for stand in calls.given.values()):
            if found[0] == self.captured.edges:
                return "edge", found[1:]
            if found[0] == 1:
                return "all", found[1:]
        return "all", found

    # ------------------------------------------------------------------ groups

    def groups(self) -> list[list[Call]]:
        """Nodes that become one program each, in the order of the graph.

        A node's level is the number of operations that are none of rows on the way to it from
        others that are: nodes of one level have no way between them that leads out of the group.
        """
        levels: dict[Call, int] = {}
        parent: dict[Call, Call] = {}

        def root(node: Call) -> Call:
            """The node that stands for a group."""
            while parent[node] is not node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        for node in self.captured.graph.nodes:
            ours = node in self.calls
            given = node.all_input_nodes
            steps = [levels[one] + (one in self.calls and not ours) for one in given]
            levels[node] = max(steps, default=0)
        for node in reversed(list(self.calls)):  # as late as what reads it allows
            if all(user in self.calls for user in node.users):
                levels[node] = min(levels[user] for user in node.users)
        for node in self.calls:
            parent[node] = node
            for one in node.all_input_nodes:
                if one in self.calls and levels[one] == levels[node]:
                    parent[root(one)] = root(node)
        found: dict[Call, list[Call]] = {}
        for node in parent:
            found.setdefault(root(node), []).append(node)
        return [group for group in found.values() if self.pays(group)]

    def pays(self, nodes: list[Call]) -> bool:
        """Whether a group gathers rows of nodes and needs a gradient, or reduces rows."""
        gathered = {one for node in nodes for one in (node, *node.all_input_nodes)}
        ends = [self.ends[one] for one in gathered if one in self.ends]
        sums = any(self.is_sum(user, node) for node in nodes for user in node.users)
        trains = any(getattr(tensor(node), "requires_grad", False) for node in nodes)
        near = any(end != "table" for end in ends)
        return (near and (trains or sums)) or (sums and len(nodes) > 1)

    def is_sum(self, user: Call, node: Call) -> bool:
        """Whether a node reduces the rows of another by the batch's own destinations."""
        ours = self.captured.by_destination(user, *_REDUCTIONS, twice=True)
        return ours and user.args[0] is node


def _insert_program(captured: Captured, reading: _Reading, group: list[Call]) -> None:
    """Replaces what is read of a group by the results of its program."""
    written = _write(captured, reading, group)
    if written is None:
        return
    builder, bases, codes, results = written
    once = results[0][2] not in captured.differentiated
    if once and len(results) == 1 and results[0][1] in ("sum", "mean"):
        found = message(captured, results[0][2].args[0])
        if isinstance(found, Message) and not {found.edge, found.weight} & set(group):
            reading.left.update(group)  # to an operator for this message
            return
    if any(one.meta.get("written") for one in (*bases, *codes)):
        return
    program = builder.program([Result(place, how) for place, how, _ in results])
    size = sum(math.prod(value.shape) for value in program.values)
    if not same_dtype(*bases) or size > MOST_NUMBERS or not _fits(captured, program, results):
        return
    users = [use for _, how, old in results for use in ([old] if how != "rows" else old.users)]
    users = [use for use in users if use not in group]
    order = {node: at for at, node in enumerate(captured.graph.nodes)}
    anchor = min(users, key=order.__getitem__)
    moved = _late(order, anchor, [*bases, *codes])
    if moved is None:
        return
    for one in moved:
        anchor.prepend(one)
    results = _side_by_side(results)
    unique: dict[tuple[int, str], int] = {}
    for place, how, _ in results:
        unique.setdefault((place, how), len(unique))
    program = builder.program([Result(*one) for one in unique])
    call = captured.before(
        anchor,
        neighbours_of,
        known(program),
        bases,
        codes,
        captured.batch_edges,
        like=results[0][2],
    )
    items = {key: captured.item(anchor, call, at, call) for key, at in unique.items()}
    for place, how, old in results:
        new = items[place, how]
        if captured.replace(old, new, NAME):
            reading.now[old] = new


def _fits(captured: Captured, program: Program, results: list[tuple[int, str, Call]]) -> bool:
    """Whether a program and its derivative can be written for the device; records why not.

    On CUDA a program that reduces nothing is left to torch, whose gathers a compiler fuses.
    """
    if captured.target.device == "cpu":
        return True
    if all(how == "rows" for _, how, _ in results):
        return False
    from staticgraph.kernels.neighbours.gpu import supports  # imports Triton

    whole = accompanied(program)
    everything = tuple(range(len(program.results))), tuple(range(len(program.operands)))
    for one in (whole, derivative(whole, *everything).program):
        if (reason := supports(one)) is not None:
            captured.miss(NAME, results[0][2], reason)
            return False
    return True


def _side_by_side(
    results: list[tuple[int, str, Call]],
) -> list[tuple[int, str, Call]]:
    """Results with those that are concatenated, and read by nothing else, as one."""
    by_value: dict[int, list[tuple[str, Call]]] = {}
    for place, how, node in results:
        if how in INTO:
            by_value.setdefault(place, []).append((how, node))
    for place, parts in by_value.items():
        cat = next((user for user in parts[0][1].users if is_cat(user)), None)
        names = {node: how for how, node in parts}
        if cat is None or len(parts) < 2 or set(cat.args[0]) != set(names):
            continue
        others = {user for node in names for user in node.users} - {cat}
        spreads = {"var", "std"} & {*names.values()}
        alone = not others or (spreads and all(map(is_square, others)))
        if alone and len(cat.args[0]) == len(parts):
            results = [one for one in results if one[2] not in names]
            results.append((place, "+".join(names[node] for node in cat.args[0]), cat))
    return results


def _late(order: dict[Call, int], anchor: Call, needed: Iterable[Call]) -> list[Call] | None:
    """The nodes behind ``anchor`` that ``needed`` are computed from, in order; None if one of them
    must stay where it is."""
    limit, left, found = order[anchor], list(needed), set()
    while left:
        node = left.pop()
        if node in found or order[node] < limit:
            continue
        written = any(one.meta.get("written") for one in (node, *node.all_input_nodes))
        if written or node.is_impure() or any(one in said(node) for one in _DRAWS):
            return None
        found.add(node)
        left += node.all_input_nodes
    return sorted(found, key=order.__getitem__)


def _write(
    captured: Captured, reading: _Reading, group: list[Call]
) -> tuple[Builder, list[Call], list[Call], list[tuple[int, str, Call]]] | None:
    """The values of a group's nodes, its operands and codes, and what is read of it: the place of a
    value, its reduction and the node that it replaces."""
    builder, bases, codes = Builder(), [], []
    places: dict[Call, Any] = {}
    nodes = set(group)

    def operand(key: Any, place: str, row: tuple[int, ...], base: Call, code: int = -1) -> int:
        """The value of an operand, added once."""
        if key not in places:
            bases.append(base)
            places[key] = builder.operand(place, row, code)
        return places[key]

    def gathered(node: Call) -> int:
        """The value of a gather."""
        base, _, index = node.args
        place, code = reading.ends[node], -1
        if place == "table":
            if index not in codes:
                codes.append(index)
            code = codes.index(index)
        return operand((place, base, code), place, tuple((shape(base) or ())[1:]), base, code)

    for node in group:
        if node in reading.ends:
            places[node] = gathered(node)
            continue
        calls = reading.calls[node]
        if not calls.calls:
            places[node] = places[node.args[0]][node.args[1]]
            continue
        arguments: dict[Call, int] = {}
        for one in calls.given:
            if one in nodes:
                arguments[one] = places[one]
            elif one in reading.ends and not one._erased:
                arguments[one] = gathered(one)
            else:
                now = reading.now.get(one, one)
                arguments[one] = operand(now, *reading.leaf(now, calls), now)
        places[node] = write(builder, calls, captured.edges, arguments)
    results: list[tuple[int, str, Call]] = []
    for node in group:
        outside = [user for user in node.users if user not in nodes]
        if not outside:
            continue
        rest = False
        for user in outside:
            if reading.is_sum(user, node):
                results.append((places[node], _REDUCTIONS[user.args[4]], user))
            else:
                rest = True
        if rest and dtype(node) == dtype(bases[0]) and isinstance(places[node], int):
            results.append((places[node], "rows", node))
    _join_moments(builder, results)
    return (builder, bases, codes, results) if results else None


def _join_moments(builder: Builder, results: list[tuple[int, str, Call]]) -> None:
    """Replaces means of a message and of its squares by the variance that is computed of them."""
    averages = {place: node for place, how, node in results if how == "mean"}
    for place, mean in averages.items():
        square = builder.point("mul", place, place)
        found = spread(averages[square], mean) if square in averages else None
        if found is not None:
            results.remove((square, "mean", averages[square]))
            results.append((place, *found))
            if all(map(is_square, mean.users)):
                results.remove((place, "mean", mean))
