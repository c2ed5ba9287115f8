"""Converts PyG ``HeteroData`` objects to the flat columns of a store.

Each node and edge type is an axis of the data set, with its own rows, padding and mask; all types
share one slot. A type's ``edge_index`` is an index field whose two rows refer to the nodes of its
two end types. The types are those of the first graph (or of a schema); a graph that lacks a type
has no rows of it.

A field is stored under ``type.name``: ``atom.x``, ``atom__bond__atom.edge_attr``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.errors import BadGraph
from staticgraph.schema import Axis, Level, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import IndexRule
from staticgraph.store.graph_columns import Kept
from staticgraph.store.pyg.homogeneous import PygReader
from staticgraph.store.pyg.levels import as_tensor, odd_rows, whole_count
from staticgraph.store.pyg.rules import Increments, Said, counted_level, said_by
from staticgraph.text.how_many import how_many

# Attributes of a type that PyG reserves, or that repeat the offsets.
IGNORED = frozenset({"num_nodes", "batch", "ptr"})


def axes_of(data: Any) -> tuple[Axis, ...]:
    """Returns the types of a ``HeteroData``, nodes first."""
    nodes = tuple(Axis(name, "node", (name,)) for name in data.node_types)
    edges = tuple(Axis("__".join(kind), "edge", tuple(kind)) for kind in data.edge_types)
    return nodes + edges


class HeteroReader(PygReader):
    """Collects the tensors of every graph under the names of their types."""

    def __init__(
        self,
        name: str,
        excluded: set[str] | frozenset[str],
        schema: Schema | None,
        levels: Mapping[str, Level],
    ) -> None:
        super().__init__(name, excluded - {"edge_index"}, schema, levels)
        self.types: tuple[Axis, ...] = () if schema is None else schema.node_axes + schema.edge_axes
        self.counts_of: dict[str, list[int]] = {axis.name: [] for axis in self.types}

    def add(self, number: int, data: Any) -> None:
        """Reads one graph.

        Raises:
            BadGraph: if it is not a ``HeteroData``, its types do not fit those of the first graph,
                or it lacks a field that the first has.
        """
        if not hasattr(data, "node_types"):
            raise BadGraph(
                f"item {number} of {self.name} is of type {type(data).__name__}; expected "
                f"HeteroData, as the {'first' if self.schema is None else 'plan has graphs'}"
            )
        if not self.types:
            self.types = axes_of(data)
            self.counts_of = {axis.name: [] for axis in self.types}
        present = {*data.node_types, *data.edge_types}
        self._check_present(number, present)
        self._refuse_unknown(number, data)
        found: dict[str, Said] = {}
        for axis in self.types:
            rows = 0
            if axis.key in present:
                rows = self._read_type(number, data, axis, found)
            self.counts_of[axis.name].append(rows)
        for key, value in data._global_store.items():
            self._read(number, data, key, key, value, found, data._global_store)
        self._fill_absent(present, found)
        self.nodes.append(sum(self.counts_of[a.name][-1] for a in self.types if a.kind == "node"))
        self.edges.append(sum(self.counts_of[a.name][-1] for a in self.types if a.kind == "edge"))
        self._collect(number, found)

    def _check_present(self, number: int, present: set[Any]) -> None:
        """Rejects edges to a node type that a graph lacks.

        This must happen before PyG's rules are called: they would create that type in the caller's
        graph, without a number of nodes.
        """
        for axis in self.types:
            if axis.kind == "edge" and axis.key in present:
                missing = sorted({*axis.type[::2]} - present)
                if missing:
                    raise BadGraph(
                        f"graph {number} of {self.name} has edges {axis.key} but no nodes of type "
                        f"{', '.join(map(repr, missing))}: add them (empty where it has none), or "
                        "leave these edges out"
                    )

    def _refuse_unknown(self, number: int, data: Any) -> None:
        known = {axis.key for axis in self.types}
        for key in (*data.node_types, *data.edge_types):
            if key not in known:
                what = "the plan does not have" if self.schema else "graph 0 lacks"
                raise BadGraph(
                    f"graph {number} has {'edges' if isinstance(key, tuple) else 'nodes'} of type "
                    f"{key!r}, which {what}: let the first graph have every type (empty where it "
                    "has none), and new graphs the types of the training data"
                )

    def _read_type(self, number: int, data: Any, axis: Axis, found: dict[str, Said]) -> int:
        """Reads all fields of one type and returns its number of rows in this graph."""
        store = data[axis.key]
        for key, value in store.items():
            if key not in IGNORED:
                self._read(number, data, f"{axis.name}.{key}", key, value, found, store)
        if axis.kind == "node":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyG warns where it must infer the number
                rows = store.num_nodes
            if rows is None:
                raise BadGraph(
                    f"graph {number} does not say how many nodes of type {axis.key!r} it has: set "
                    f"data[{axis.key!r}].num_nodes"
                )
            return whole_count(rows, number)
        index = found.get(f"{axis.name}.edge_index")
        if index is None or index.rows.dim() != 2 or index.rows.size(1) != 2:
            raise BadGraph(
                f"graph {number} has edges {axis.key} without an edge_index of shape [2, edges]: "
                "add it, or drop the type"
            )
        return len(index.rows)

    def _read(
        self,
        number: int,
        data: Any,
        name: str,
        key: str,
        value: Any,
        found: dict[str, Said],
        store: Any,
    ) -> None:
        if key in self.excluded or name in self.excluded:
            return
        tensor = as_tensor(value, name)
        if tensor is None:
            self.set_aside(number, name, value)
        else:
            found[name] = said_by(data, key, tensor, number, store)

    def _fill_absent(self, present: set[Any], found: dict[str, Said]) -> None:
        """Adds zero rows to every field of the types that this graph lacks."""
        for axis in self.types:
            if axis.key in present:
                continue
            expected = self.values if self.schema is None else [f.name for f in self.schema]
            for name in expected:
                if not name.startswith(f"{axis.name}."):
                    continue
                steps: tuple[int, ...] = ()
                if axis.kind == "edge" and name.endswith("index"):
                    steps = tuple(self.counts_of[end][-1] for end in axis.type[::2])
                if self.schema is not None:
                    field = self.schema[name]
                    empty = torch.zeros(0, *field.shape, dtype=getattr(torch, field.dtype))
                    found[name] = Said(empty, field.cat_dim, steps)
                else:
                    found[name] = Said(self.values[name][0][:0], self.cat_dims[name], steps)

    # ------------------------------------------------------------------ deciding

    def _owner(self, key: str) -> Axis | None:
        """Returns the type that a field belongs to; None for fields of the whole graph."""
        owners = [axis for axis in self.types if key.startswith(f"{axis.name}.")]
        return max(owners, key=lambda axis: len(axis.name), default=None)

    def _counts(self) -> dict[str, tuple[Level, ...]]:
        self.axes: dict[str, IntArray] = {
            name: np.asarray(rows) for name, rows in self.counts_of.items()
        }
        if self.schema is not None:
            return self._expected_counts(self.schema)
        counts: dict[str, tuple[Level, ...]] = {}
        ends = {axis.name: axis.type[::2] for axis in self.types if axis.kind == "edge"}
        for key, said in self.increments.items():
            owner = self._owner(key)
            columns = Increments(key, said).columns()
            if owner is not None and owner.name in ends and key.endswith("index"):
                counts[key] = ends[owner.name]
                self._check_ends(key, columns, counts[key])
                continue
            found = []
            for place, steps in enumerate(columns):
                level = counted_level(steps, None, None, self.axes)
                if level is None:
                    level = self._axis_for(key, place, steps)
                    self.axes[level] = steps
                found.append(level)
            counts[key] = tuple(found)
        return counts

    def _check_ends(self, key: str, columns: list[IntArray], ends: tuple[Level, ...]) -> None:
        for place, end in enumerate(ends):
            steps = columns[min(place, len(columns) - 1)] if columns else 0 * self.axes[end]
            wrong = steps != self.axes[end]
            if wrong.any():
                odd = int(wrong.argmax())
                raise BadGraph(
                    f"graph {odd} adds {steps[odd]} to row {place} of {key!r} (__inc__), but has "
                    f"{how_many(self.axes[end][odd], 'node')} of type {end!r}: let __inc__ say so, "
                    "or give the field a name that does not end in 'index'"
                )

    def _level(self, key: str, tensors: Any, is_index: bool = False) -> tuple[Level, int]:
        owner = self._owner(key)
        lengths = self._lengths(key)
        if self.schema is not None:
            self._check_lengths(key, lengths)
            return self.schema[key].level, self.schema[key].rows
        if self.cat_dims[key] is None:
            return "graph", 1
        if key in self.levels:
            asked = self.levels[key]
            return (
                (asked, int(lengths[0]))
                if asked == "graph"
                else (
                    self._on_axis(key, asked, lengths),
                    1,
                )
            )
        if owner is not None and np.array_equal(lengths, self.axes[owner.name]):
            return owner.name, 1
        if (lengths == lengths[0]).all() and lengths[0] > 0:
            return "graph", int(lengths[0])
        shared = [name for name, rows in self.axes.items() if np.array_equal(rows, lengths)]
        if shared or is_index or self.cat_dims[key]:
            return self._on_axis(key, shared[-1] if shared else key, lengths), 1
        levels = {} if owner is None else {owner.name: np.asarray(self.axes[owner.name])}
        raise BadGraph(odd_rows(key, lengths, levels))

    def _no_label(self, number: int, key: str) -> Tensor:
        assert self.schema is not None
        field = self.schema[key]
        known = {name: rows[number] for name, rows in self.counts_of.items()}
        rows = {"graph": field.rows, **known}[field.level]
        return torch.zeros(rows, *field.shape, dtype=getattr(torch, field.dtype))

    def _built(
        self,
        kind: type[Kept],
        fields: Mapping[str, tuple[Level, Any]],
        rows: Mapping[str, int],
        counts: Mapping[str, tuple[Level, ...]],
        check_finite: bool | tuple[str, ...],
    ) -> Kept:
        types = {axis.name: axis for axis in self.types}
        none = np.empty(0, np.int64)
        return kind.from_arrays(
            np.asarray(self.nodes, dtype=np.int64),
            np.asarray(self.edges, dtype=np.int64),
            none,
            none,
            fields,
            rows=rows,
            name=self.name,
            check_finite=check_finite,
            axes={types.get(name, Axis(name)): found for name, found in self.axes.items()},
            rules={key: IndexRule(self.cat_dims[key], counts[key]) for key in fields},
        )
