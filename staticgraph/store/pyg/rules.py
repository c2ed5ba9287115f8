"""Reads PyG's ``__cat_dim__`` and ``__inc__`` of a field once, and keeps the results as levels.

PyG calls both for every graph whenever it makes a batch: along which dimension to concatenate, and
how much to add to the values of each graph. Over a data set the increments are always counts: of
nodes, edges, rows of another field, or clusters. Here each is matched with the rows that it counts,
over all graphs, so that a batch of fixed shape can add and pad without calling them again.
Increments that are not such counts are rejected with an error that names the field.

In a data set of rings, ``__inc__`` returns the same numbers whether it counts nodes or edges, but
the difference matters, since edges are sorted and padded separately from nodes. So it is called
again on a copy of a graph with one more edge, and on a copy with one more node: the increment grows
with one or the other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from staticgraph.errors import BadGraph
from staticgraph.schema import EDGE_INDEX, Level
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.text.how_many import how_many

# Only for keys that contain one of these do PyG's own rules differ from "rows first, add nothing".
_SPECIAL = ("index", "face", "batch", "adj")


class Said(NamedTuple):
    """The results of one graph's rules for one field.

    Attributes:
        rows: the value with its row dimension first.
        cat_dim: the original row dimension, not negative; None if PyG stacks the field.
        increments: the numbers to add: one, or one per scalar of a row; empty if nothing is added.
    """

    rows: Tensor
    cat_dim: int | None = 0
    increments: tuple[int, ...] = ()


def asks_nothing(data: Any, key: str) -> bool:
    """Returns whether a graph's class has PyG's own rules, and they are plain for this key."""
    return has_stock_rules(data) and not any(word in key for word in _SPECIAL)


def has_stock_rules(data: Any) -> bool:
    """Returns whether a graph's class has PyG's own rules."""
    kind = type(data)
    return kind.__inc__ is Data.__inc__ and kind.__cat_dim__ is Data.__cat_dim__


def said_by(data: Any, key: str, value: Tensor, number: int, store: Any) -> Said:
    """Calls a graph's rules for the tensor of one of its fields, as PyG's collation does.

    Raises:
        BadGraph: if a rule raises, or no batch of fixed shape can follow its result.
    """
    try:
        dim = data.__cat_dim__(key, value, store)
        step = data.__inc__(key, value, store)
    except Exception as error:  # any exception of a user's method
        raise BadGraph(
            f"graph {number}: its __cat_dim__ or __inc__ of {key!r} raised "
            f"{type(error).__name__}: {error}; fix it, or pass exclude=[{key!r}]"
        ) from error
    if dim is None:
        rows = value[None]
    elif isinstance(dim, int) and -value.dim() <= dim < value.dim():
        dim %= value.dim()
        rows = value.movedim(dim, 0)
    else:
        raise BadGraph(
            f"graph {number} gives {dim!r} as __cat_dim__ of {key!r}, whose shape is "
            f"{list(value.shape)}; one of its dimensions, or None, can be concatenated along"
        )
    steps = _increments(step, value, dim, key, number)
    if steps and value.is_floating_point():
        raise BadGraph(
            f"graph {number} would add {step} to {key!r}, which is {value.dtype} (__inc__ counts "
            "for every field whose name has 'batch' or 'index' in it): rename the field, or let "
            "__inc__ return 0 for it"
        )
    return Said(rows.contiguous(), dim, steps)


def _increments(
    step: Any, value: Tensor, dim: int | None, key: str, number: int
) -> tuple[int, ...]:
    """Returns one number, or one per scalar of a row; empty if nothing is added."""
    steps = torch.as_tensor(step)
    if steps.is_floating_point() or (steps.numel() and int(steps.min()) < 0):
        raise BadGraph(
            f"graph {number} gives {step!r} as __inc__ of {key!r}; whole numbers from 0 on can be "
            "added"
        )
    if steps.numel() <= 1:
        single = int(steps.sum())
        return (single,) if single else ()
    shape = list(value.shape)
    if dim is not None:
        shape[dim] = 1
    try:
        spread = steps.expand(shape).movedim(dim or 0, 0).reshape(-1)
    except RuntimeError:
        raise BadGraph(
            f"graph {number} gives increments of shape {list(steps.shape)} for {key!r} of shape "
            f"{list(value.shape)}: what is added must be the same along dimension {dim}, over "
            f"which graphs are concatenated, so it is a number or of a shape that spreads to "
            f"{shape}"
        ) from None
    return tuple(spread.tolist())


def increments_of(key: str, increments: list[tuple[int, ...]]) -> list[IntArray]:
    """Returns ``[n]`` increments for each scalar of a row; one array if all are the same.

    Raises:
        BadGraph: if graphs give different numbers of increments.
    """
    width = max((len(steps) for steps in increments), default=0)
    for number, steps in enumerate(increments):
        if len(steps) not in (0, 1, width):
            raise BadGraph(
                f"graph {number} gives {how_many(len(steps), 'increment')} for {key!r}, others "
                f"give {width}"
            )
    filled = [_spread(steps, width) for steps in increments]
    columns = list(np.asarray(filled, dtype=np.int64).reshape(len(increments), width).T)
    same = all(np.array_equal(column, columns[0]) for column in columns)
    return columns[:1] if same else columns


def counted_level(steps: IntArray, levels: Mapping[Level, IntArray]) -> Level | None:
    """Returns the level that these increments count; ``""`` if all are 0, None if no level fits."""
    if not steps.any():
        return ""
    known = {**levels, "graph": np.ones_like(steps)}
    return next((level for level, rows in known.items() if np.array_equal(rows, steps)), None)


# The tensor fields from which PyG derives ``num_edges`` and ``num_nodes``
# (torch_geometric/data/storage.py, E_KEYS and N_KEYS).
OF_EDGES = ("edge_index", "edge_attr", "edge_weight", "edge_type")
OF_NODES = ("x", "feat", "pos", "batch", "node_type", "n_id")


def counted_by(data: Any, key: str, number: int) -> tuple[Level, ...] | None:
    """Returns the level that a field's values refer to: ``node``, ``edge``, or ``""`` for neither.

    The tuple has one entry for all scalars of a row, or one per scalar. None if the graph's class,
    which has rules of its own, gives no clear answer.
    """
    larger = _with_row(data, OF_NODES)
    larger.num_nodes = int(data.num_nodes) + 1
    with_node = _asked(larger, key, number)
    with_edge = _asked(_with_row(data, OF_EDGES), key, number)
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


def _spread(steps: tuple[int, ...], width: int) -> tuple[int, ...]:
    return steps if len(steps) == width else (steps or (0,)) * width


def _with_row(data: Any, names: tuple[str, ...]) -> Any:
    """Returns a copy in which these fields, as far as they are there, have one more row."""
    more = copy.copy(data)
    for name in names:
        value = data.get(name) if name in data else None
        if isinstance(value, Tensor) and value.dim():
            dim = value.dim() - 1 if name == EDGE_INDEX else 0
            shape = [*value.shape[:dim], 1, *value.shape[dim + 1 :]]
            more[name] = torch.cat([value, value.new_zeros(shape)], dim)
    return more
