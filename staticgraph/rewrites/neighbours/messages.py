"""Rewrites every message that is computed row by row to one pass over the edges: ``neighbours``.

Gathers at either end, what is computed of their rows and of edges' own, and what reduces it by the
batch's own destinations (:mod:`staticgraph.rewrites.neighbours.edge_groups`) become a program
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
from typing import Any, cast

import torch
from torch.fx import Node

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours import Builder, Result, neighbours_of
from staticgraph.kernels.neighbours.derivative import accompanied, derivative
from staticgraph.kernels.neighbours.formula import formula
from staticgraph.kernels.neighbours.program import SIMPLE, Program, known
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    GATHER,
    LINEAR,
    SCATTER,
    Call,
    dtype,
    is_call,
    is_fenced,
    is_float,
    name_of,
    shape,
    target_name,
    tensor,
)
from staticgraph.rewrites.captured_graph.captured import Captured, same_dtype
from staticgraph.rewrites.neighbours import score_products, softmax
from staticgraph.rewrites.neighbours.edge_groups import Group, Reading, index_of
from staticgraph.rewrites.neighbours.edge_operands import Operands, operands
from staticgraph.rewrites.neighbours.edge_sets import edge_sets
from staticgraph.rewrites.neighbours.edge_terms import is_cat, stacked
from staticgraph.rewrites.neighbours.moments import is_square, means
from staticgraph.rewrites.neighbours.program_writer import ProgramWriter, Read
from staticgraph.rewrites.passes.eliminate import drop_unread

NAME = "neighbours"
# Parts of the names of operations whose order matters: they draw random numbers.
_DRAWS = ("drop", "rand", "bernoulli", "normal", "uniform", "multinomial", "gumbel")
# Numbers of all values of a program, above which compiling it would take seconds: with one matrix
# per edge (NNConv), 96 columns have 28,032.
MOST_NUMBERS = 1 << 15


def rewrite(captured: Captured) -> None:
    """Rewrites all messages that a gradient or a reduction makes worth it."""
    for edges in edge_sets(captured):
        with captured.reading_over(edges):
            for rule in (score_products.rewrite, softmax.rewrite, _over_edges):
                rule(captured)
    if captured.facts:
        _over_edges(captured)
        for node in captured.calls(SCATTER):
            _record(captured, node)


def _over_edges(captured: Captured) -> None:
    """Rewrites the messages over the batch's edges, or over those of the model's own."""
    means(captured)
    against = captured.over is not None and captured.over.against
    if captured.target.device == "cpu" and not against:
        move_linear(captured)
    reading = Reading(captured)
    for group in reading.groups():
        if against and all(
            captured.index(index_of(reduction)) != "dst" for reduction in group.reductions
        ):
            continue
        if not _insert_program(captured, reading, group) and group.rows:
            for node in group.reductions:  # of rows that torch computes
                _insert_program(captured, reading, Group([], [node]))
    drop_unread(captured.graph)
    for node in () if against else captured.calls(GATHER):
        if node in reading.ends and reading.trains([node]):
            _insert_program(captured, reading, Group([node], []))
        elif captured.index(node.args[2]) == "batch" and captured.target.device == "cpu":
            _by_graph(captured, node)


def _record(captured: Captured, node: Call) -> None:
    """Records why a reduction over edges stays as it is."""
    index = node.args[1]
    if not is_float(node) or node.args[3] != captured.nodes:
        return
    if captured.index(index) is None:
        why = index if isinstance(index, Node) else None
        reason = "its index is not the batch's own, and nothing is gathered by its edges"
        captured.miss(NAME, node, reason, why)
    elif captured.index(index) == "src":
        captured.miss(NAME, node, f"the {node.args[4]} by source of no rows of nodes")


def _by_graph(captured: Captured, node: Call) -> None:
    """Rewrites rows of graphs that nodes read, ``x[batch]``: backward sums a graph's nodes."""
    rows, fake = node.args[0], tensor(node)
    sizes = shape(rows)
    if sizes is None or sizes[0] != captured.graphs or not is_float(node):
        return
    if fake is None or not fake.requires_grad:
        return
    builder = Builder()
    program = builder.program([Result(builder.operand("target", sizes[1:]), "rows")])
    batch, ptr = (cast(Any, captured.facts[name]) for name in ("batch", "ptr"))
    edges = Edges(batch, batch, ptr, ptr, ptr)
    new = captured.before(node, neighbours_of, known(program), [rows], [], edges)
    captured.replace(node, captured.item(node, new, 0, node), NAME)


def move_linear(captured: Captured) -> None:
    """Moves linear layers of gathered rows to the nodes, and stacks of them, for towers."""
    for node in reversed(list(captured.graph.nodes)):
        sizes = shape(node) or (0,)
        if not node.users or len(sizes) not in (2, 3) or sizes[0] != captured.edges:
            continue
        moves = is_call(node, LINEAR, torch.stack) and is_float(node)
        towers = stacked(captured, node) if moves else []
        if not any(terms.split for terms in towers):
            continue
        ends = operands(captured, node, towers)
        if ends is not None and same_dtype(ends.source, ends.target, ends.edge, node):
            rows = captured.reshaped(node, _gathered(captured, node, ends), *sizes)
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


def _insert_program(captured: Captured, reading: Reading, group: Group) -> bool:
    """Replaces what is read of a group by the results of its program; returns whether it did."""
    writer = ProgramWriter(captured, reading, group)
    results = writer.add_own_terms(writer.write())
    builder, bases, codes = writer.builder, writer.bases, writer.codes
    if not results or any(operand.meta.get("written") for operand in (*bases, *codes)):
        return False
    program = builder.program(list(dict.fromkeys(read.result for read in results)))
    size = sum(math.prod(value.shape) for value in program.values)
    if size > MOST_NUMBERS or not all(map(is_float, [*bases, *(read.node for read in results)])):
        return False
    if not _fits(captured, program, results):
        return False
    users = {user for read in results for user in read.users} - {*group.rows, *group.reductions}
    users |= {read.last for read in results if read.result.reduction != "rows"}
    edges = captured.all_edges
    order = {node: place for place, node in enumerate(captured.graph.nodes)}
    anchor = min(users, key=order.__getitem__)
    while is_fenced(anchor) and is_fenced(anchor.prev):  # before the region that it is in
        anchor = anchor.prev
    moved = _late(order, anchor, users, [*bases, *codes, *edges.arrays])
    if moved is None:
        return False
    for moved_node in moved:
        anchor.prepend(moved_node)
    results = _side_by_side(results)
    unique = {
        result: place for place, result in enumerate(dict.fromkeys(read.result for read in results))
    }
    program = builder.program(list(unique))
    call = captured.before(
        anchor,
        neighbours_of,
        known(program),
        bases,
        codes,
        edges,
        like=results[0].node,
    )
    items = {part: captured.item(anchor, call, place, call) for part, place in unique.items()}
    news = []  # all before the first is put in the place of an old one, which may be the anchor
    for result, old, last in results:
        new = items[result]
        if dtype(new) != dtype(last):
            new = captured.before(anchor, torch.Tensor.to, new, dtype(last), like=old)
        news.append(new)
    for (result, old, last), new in zip(results, news, strict=True):
        rows = old.args[0] if old.args else None
        if result.reduction != "rows" and reading.is_apart(rows):
            captured.miss(NAME, old, f"{target_name(rows)} is computed apart from it", rows)
        computes = formula(program, program.results[unique[result]], list(map(name_of, bases)))
        if captured.replace(old, new, NAME, last=last, computes=computes):
            reading.now[old] = new
    for node in reversed(group.rows):  # unread, they may be before what they read now
        if not node.users and not node._erased:
            captured.graph.erase_node(node)
    return True


def _fits(captured: Captured, program: Program, results: list[Read]) -> bool:
    """Whether a program and its derivative can be written for the device; records why not.

    On CUDA a program that reduces nothing is left to torch, whose gathers a compiler fuses.
    """
    if captured.target.device == "cpu":
        return True
    if all(result.reduction == "rows" for result in program.results):
        return False
    from staticgraph.kernels.neighbours.gpu import supports  # imports Triton

    whole = accompanied(program)
    everything = tuple(range(len(program.results))), tuple(range(len(program.operands)))
    for candidate in (whole, derivative(whole, *everything).program):
        if (reason := supports(candidate)) is not None:
            captured.miss(NAME, results[0].node, reason)
            return False
    return True


def _side_by_side(results: list[Read]) -> list[Read]:
    """Results with those that are concatenated, and read by nothing else, as one."""
    by_value: dict[int, list[Read]] = {}
    for read in results:
        if read.result.reduction in SIMPLE and read.result.start < 0:
            by_value.setdefault(read.result.value, []).append(read)
    for place, parts in by_value.items():
        cat = next((user for user in parts[0].node.users if is_cat(user)), None)
        names = {part.node: part.result.reduction for part in parts}
        if cat is None or len(parts) < 2 or set(cat.args[0]) != set(names):
            continue
        others = {user for node in names for user in node.users} - {cat}
        spreads = {"var", "std"} & {*names.values()}
        alone = not others or (spreads and all(map(is_square, others)))
        if alone and len(cat.args[0]) == len(parts):
            whole = Result(place, "+".join(names[node] for node in cat.args[0]))
            results = [result for result in results if result.node not in names]
            results.append(Read(whole, cat, cat))
    return results


def _late(
    order: dict[Call, int], anchor: Call, users: set[Call], needed: Iterable[Call]
) -> list[Call] | None:
    """The nodes behind ``anchor`` that ``needed`` are computed from, in order; None if one of them
    must stay where it is, or is among the ``users`` of what is computed."""
    limit, left, late = order[anchor], list(needed), set()
    while left:
        node = left.pop()
        if node in late or order[node] < limit:
            continue
        fixed = any(operand.meta.get("written") for operand in (node, *node.all_input_nodes))
        if (
            fixed
            or node in users
            or is_fenced(node)
            or node.is_impure()
            or any(name in target_name(node) for name in _DRAWS)
        ):
            return None
        late.add(node)
        left += node.all_input_nodes
    return sorted(late, key=order.__getitem__)
