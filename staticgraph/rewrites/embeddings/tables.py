"""Rewrites a sum of embedding tables, one per column, to one lookup: ``table_sum``.

For ``emb0(x[:, 0]) + emb1(x[:, 1]) + ...`` the tables are concatenated, and looked up and summed in
one call. Where the tables have few combinations (bonds have 60), the sums themselves form one small
table, and messages read its rows: here this becomes a gather of the small table, which
:mod:`staticgraph.rewrites.neighbours.messages` picks up; gathers that it leaves become one lookup
again.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch

from staticgraph.kernels.table_sum import fold_codes, table_sum
from staticgraph.rewrites.captured_graph import canonical_ops
from staticgraph.rewrites.captured_graph.canonical_ops import (
    ADD,
    EMBEDDING,
    GATHER,
    SELECT,
    Call,
    added_to,
    is_call,
    is_method,
    shape,
    tensor,
    used_once,
)
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.rewrites.passes.eliminate import drop_twins

NAME = "tables"
# Combinations up to which summed tables are folded: at 64 columns of float32 the folded table is
# 64 KiB, which stays in the second-level cache of a CPU core and of a GPU.
MAX_FOLDED = 256


class Lookup(NamedTuple):
    """One table and the integers that index it: a column of ``base``, or all of it."""

    node: Call
    base: Call
    column: int | None
    weight: Call


class FoldedLookup(NamedTuple):
    """The lookup that a gather of a small table stands for; without offsets it reads the rows of
    ``weight`` at ``index [E]``."""

    index: Call
    offsets: Call | None
    weight: Call


def rewrite(captured: Captured) -> None:
    """Rewrites the sums, the longest first."""
    for node in reversed(list(captured.graph.nodes)):
        if not (is_call(node, ADD, EMBEDDING)) or not node.users:
            continue
        if is_call(node, ADD) and not canonical_ops.is_float(node):
            continue
        if added_to(node)[0] is not None:  # a longer sum has it as its term
            continue
        terms = _terms(node)
        lookups = [_lookup(captured, term) for term in terms]
        _join(captured, node, terms, lookups)
    drop_twins(captured.graph)  # the equal codes of one array, by which each layer reads its tables


def unfold(captured: Captured) -> None:
    """Turns gathers of small tables that no sum over neighbours picked up into one lookup again."""
    for node, folded in captured.folded.items():
        if node.users:
            index, offsets, weight = folded
            if offsets is None:
                rows = (shape(weight) or (0,))[0]
                offsets = captured.constant(f"offsets_of_{rows}", torch.tensor([0, rows]))
                index = captured.before(node, torch.unsqueeze, index, 1)
            new = captured.before(node, table_sum, index, offsets, weight)
            captured.replace(node, new)


def _terms(node: Any) -> list[Any]:
    """The terms of a sum, through partial sums that nothing else reads."""
    if not is_call(node, ADD):
        return [node]
    terms: list[Any] = []
    for part in node.args:
        inner = is_call(part, ADD) and used_once(part) and shape(part) == shape(node)
        terms += _terms(part) if inner else [part]
    return terms


def _lookup(captured: Captured, node: Any) -> Lookup | None:
    if not is_call(node, EMBEDDING):
        return None
    by_name = dict(zip(_OPTIONS, node.args, strict=False)) | node.kwargs
    if not used_once(node):
        return None
    index, weight = by_name["input"], by_name["weight"]
    plain = by_name.get("padding_idx") is None and by_name.get("max_norm") is None
    if not plain or by_name.get("scale_grad_by_freq") or by_name.get("sparse"):
        reason = "a table has padding_idx, max_norm, sparse gradients or scaled gradients"
        captured.miss(NAME, node, reason)
        return None
    while is_method(index, "long", "to", "int"):
        index = index.args[0]
    integers, rows = tensor(index), tensor(weight)
    if integers is None or rows is None or integers.dtype.is_floating_point or integers.dim() > 2:
        return None
    if is_call(index, SELECT) and index.args[1] in (1, -1) and integers.dim() == 1:
        base = tensor(index.args[0])
        if base is not None and base.dim() == 2:
            return Lookup(node, index.args[0], index.args[2] % base.size(1), weight)
    if (
        integers.dim() == 1
        and captured.facts
        and integers.size(0) in (captured.nodes, captured.edges)
    ):
        return Lookup(node, index, None, weight)
    return None


_OPTIONS = (
    "input",
    "weight",
    "padding_idx",
    "max_norm",
    "norm_type",
    "scale_grad_by_freq",
    "sparse",
)


def _join(captured: Captured, node: Call, terms: list[Any], lookups: list[Lookup | None]) -> None:
    groups: dict[Call, list[Lookup]] = {}
    for candidate in lookups:
        if candidate is not None:
            groups.setdefault(candidate.base, []).append(candidate)
    if not groups:
        return
    rest = [t for t, lookup in zip(terms, lookups, strict=True) if lookup is None]
    total: Any = None
    # On CUDA a sum over neighbours would take more launches to read a folded table than its rows.
    fold = len(groups) == 1 and captured.target.device == "cpu"
    for base, members in groups.items():
        joined = _table_sum(captured, node, base, members, fold)
        total = joined if total is None else captured.before(node, ADD, total, joined)
    for term in rest:
        total = captured.before(node, ADD, total, term)
    captured.replace(node, total, NAME)


def _table_sum(
    captured: Captured, anchor: Call, base: Call, lookups: list[Lookup], fold: bool
) -> Call:
    like = lookups[0].node
    sizes = [tensor(lookup.weight).size(0) for lookup in lookups]  # pyright: ignore
    columns = [lookup.column for lookup in lookups]
    before = captured.before
    index, integers = base, tensor(base)
    assert integers is not None
    if columns == [None]:
        index = before(anchor, torch.unsqueeze, base, 1, like=base)
    elif columns != list(range(integers.size(1))):
        chosen = captured.constant(f"columns_{'_'.join(map(str, columns))}", torch.tensor(columns))
        index = before(anchor, torch.index_select, base, 1, chosen, like=base)
    if integers.dtype != torch.int64:
        index = before(anchor, torch.Tensor.long, index, like=base)
    weights = [lookup.weight for lookup in lookups]
    weight = (
        weights[0] if len(weights) == 1 else before(anchor, torch.cat, weights, like=weights[0])
    )
    name = "_".join(map(str, sizes))
    offsets = captured.constant(f"offsets_{name}", torch.tensor([0, *accumulate(sizes)]))
    few = fold and len(sizes) > 1 and prod(sizes) <= MAX_FOLDED
    if not few or integers.size(0) < 4 * prod(sizes):
        return before(anchor, table_sum, index, offsets, weight, like=like)
    combinations = captured.constant(
        f"combinations_{name}", torch.cartesian_prod(*map(torch.arange, sizes))
    )
    rows = before(anchor, table_sum, combinations, offsets, weight, like=like)
    code = before(anchor, fold_codes, index, offsets, like=like)
    new = before(anchor, GATHER, rows, 0, code, like=like)
    captured.folded[new] = FoldedLookup(index, offsets, weight)
    return new
