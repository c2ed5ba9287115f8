"""Converts PyG ``HeteroData`` objects to the flat columns of a store.

Each node and edge type is an axis of the data set, with its own rows, padding and mask; all types
share one slot. A type's ``edge_index`` is an index field whose two rows refer to the nodes of its
two end types. The types are those of the first graph (or of a schema); a graph that lacks a type
has no rows of it.

A field is stored under ``type.name``: ``atom.x``, ``atom__bond__atom.edge_attr``.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch

from staticgraph.errors import BadGraph
from staticgraph.schema import Axis, Level
from staticgraph.store.pyg.homogeneous import PygReader
from staticgraph.store.pyg.levels import whole_count
from staticgraph.store.pyg.rules import Said


class HeteroReader(PygReader):
    """Collects the tensors of every graph under the names of their types."""

    ignored: ClassVar[frozenset[str]] = PygReader.ignored - {"edge_index"}

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
            nodes = tuple(Axis(name, "node", (name,)) for name in data.node_types)
            edges = tuple(Axis("__".join(kind), "edge", tuple(kind)) for kind in data.edge_types)
            if self.schema is not None:
                nodes, edges = self.schema.node_axes, self.schema.edge_axes
            self.types: tuple[Axis, ...] = nodes + edges
            self.rows: dict[Level, list[int]] = {axis.name: [] for axis in self.types}
        present = {*data.node_types, *data.edge_types}
        self._check_present(number, present)
        self._refuse_unknown(number, data)
        rules: dict[str, Said] = {}
        for axis in self.types:
            here = axis.key in present
            rows = self._read_type(number, data, axis, rules) if here else 0
            self.rows[axis.name].append(rows)
        for key, value in data._global_store.items():
            self._read(number, data, key, key, value, data._global_store, rules)
        self._fill_absent(present, rules)
        for kind, counts in (("node", self.nodes), ("edge", self.edges)):
            rows = (self.rows[axis.name][-1] for axis in self.types if axis.kind == kind)
            counts.append(sum(rows))
        self._collect(number, rules)

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
        keys = {axis.key for axis in self.types}
        for key in (*data.node_types, *data.edge_types):
            if key not in keys:
                what = "the plan does not have" if self.schema else "graph 0 lacks"
                raise BadGraph(
                    f"graph {number} has {'edges' if isinstance(key, tuple) else 'nodes'} of type "
                    f"{key!r}, which {what}: let the first graph have every type (empty where it "
                    "has none), and new graphs the types of the training data"
                )

    def _read_type(self, number: int, data: Any, axis: Axis, rules: dict[str, Said]) -> int:
        """Reads all fields of one type and returns its number of rows in this graph."""
        store = data[axis.key]
        for key, value in store.items():
            self._read(number, data, f"{axis.name}.{key}", key, value, store, rules)
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
        index = rules.get(f"{axis.name}.edge_index")
        if index is None or index.rows.dim() != 2 or index.rows.size(1) != 2:
            raise BadGraph(
                f"graph {number} has edges {axis.key} without an edge_index of shape [2, edges]: "
                "add it, or drop the type"
            )
        return len(index.rows)

    def _fill_absent(self, present: set[Any], rules: dict[str, Said]) -> None:
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
                    steps = tuple(self.rows[end][-1] for end in axis.type[::2])
                if self.schema is not None:
                    field = self.schema[name]
                    empty = torch.zeros(0, *field.shape, dtype=getattr(torch, field.dtype))
                    rules[name] = Said(empty, field.cat_dim, steps)
                else:
                    rules[name] = Said(self.values[name][0][:0], self.cat_dims[name], steps)
