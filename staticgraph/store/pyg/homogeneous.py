"""Converts PyG ``Data`` objects to the flat columns of a store.

A ``Data`` does not record the level of an attribute: PyG guesses it from the length, graph by
graph. Here it is decided once over the whole data set, so that a graph with as many edges as nodes,
or with a single node, cannot change the meaning of ``y``. A field that is missing from one graph,
or has another dtype or width there, is an error that names the graph.

Index fields follow PyG's ``__cat_dim__`` and ``__inc__`` (:mod:`staticgraph.store.pyg.rules`). Rows
that are neither nodes nor edges become an axis of the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.errors import BadGraph
from staticgraph.schema import EDGE_INDEX, LEVELS, Axis, Level
from staticgraph.store.columns import Array, IndexRule
from staticgraph.store.graph_columns import Kept
from staticgraph.store.pyg.counting import CountedFields
from staticgraph.store.pyg.levels import (
    as_array,
    as_tensor,
    axis_of,
    level_by_name,
    odd_rows,
    rows_in,
    whole_count,
)
from staticgraph.store.pyg.rules import Said, asks_nothing, has_stock_rules, said_by
from staticgraph.text.how_many import how_many


class PygReader(CountedFields):
    """Collects the tensors of every graph, then decides levels and concatenates."""

    def add(self, number: int, data: Any) -> None:
        """Reads one graph, of this number in the data set.

        Raises:
            BadGraph: if it is not a ``Data``, or a field is invalid; the message names it.
        """
        hetero = hasattr(data, "node_types")
        events = hasattr(data, "num_events")  # a TemporalData has rows of them, and no edges
        if isinstance(data, tuple) or hetero or events or not hasattr(data, "to_dict"):
            why = ", as the first" if self.schema is None else ", as the plan has graphs"
            raise BadGraph(
                f"item {number} of {self.name} is of type {type(data).__name__}; "
                f"expected torch_geometric.data.Data{why if hetero else ''}"
            )
        values = data.to_dict()
        raw = values.get("edge_index")
        edge_index = torch.empty(2, 0, dtype=torch.int64) if raw is None else as_tensor(raw)
        if edge_index is None:
            raise BadGraph(
                f"graph {number} has an edge_index of type {type(raw).__name__}; expected a "
                "tensor or an array, int64 [2, edges]"
            )
        if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.is_floating_point():
            raise BadGraph(
                f"graph {number} has an edge_index of shape {list(edge_index.shape)} and dtype "
                f"{edge_index.dtype}; expected int64 [2, edges]"
            )
        with warnings.catch_warnings(record=True) as guessed:
            warnings.simplefilter("always")  # PyG warns where it must guess the number
            nodes = data.num_nodes
        self.nodes.append(whole_count(nodes, number))
        self.edges.append(edge_index.size(1))
        store = data._store
        edges = Said(edge_index.T, 1, (self.nodes[-1],))
        if not has_stock_rules(data):
            if raw is not None:
                edges = said_by(data, EDGE_INDEX, edge_index, number, store)
            self.nodes_told &= not guessed
            self.ruled: tuple[int, Any] | None = self.ruled or (number, data)
        if edges.cat_dim != 1:
            raise BadGraph(
                f"graph {number} gives {edges.cat_dim} as __cat_dim__ of 'edge_index'; "
                "edges stand side by side, so it must be 1 (or -1): let its class ask super()"
            )
        rules: dict[str, Said] = {}
        for key, value in values.items():
            self._read(number, data, key, key, value, store, rules)
        rules[EDGE_INDEX] = edges
        self._check_edges_given(number, raw is None)
        self._collect(number, rules)

    def _read(
        self,
        number: int,
        data: Any,
        name: str,
        key: str,
        value: Any,
        store: Any,
        rules: dict[str, Said],
    ) -> None:
        """Reads a value, which the graph's storage has under a key, as the field of a name."""
        if key in self.excluded or name in self.excluded:
            return
        tensor = as_tensor(value, name)
        if tensor is None:
            self.set_aside(number, name, value)
        else:
            plain = asks_nothing(data, key)
            rules[name] = Said(tensor) if plain else said_by(data, key, tensor, number, store)

    def _check_edges_given(self, number: int, absent: bool) -> None:
        """Rejects a graph without ``edge_index`` if others have one, and the reverse.

        Otherwise it would be read as a graph without edges.
        """
        first = absent if self.without_edges is None else self.without_edges
        self.without_edges: bool | None = first
        if absent and (self.needs_edges or not first):
            has = "the data of the plan has" if self.needs_edges else "graph 0 has"
            raise BadGraph(
                f"graph {number} has no edge_index, which {has}; add it, of a graph without edges "
                "as torch.empty(2, 0, dtype=torch.long)"
            )
        if first and not absent:
            raise BadGraph(
                f"graph {number} has an edge_index, which graph 0 lacks; add it to every graph, of "
                "one without edges as torch.empty(2, 0, dtype=torch.long)"
            )

    def _collect(self, number: int, rules: dict[str, Said]) -> None:
        if self.schema is not None:
            expected = list(self.planned)
        else:
            expected = list(self.values) if number else list(rules)
        for key in expected:
            if key not in rules:
                if not self.needs_labels and key.rpartition(".")[2] == "y":
                    rules[key] = Said(self._no_label(number, key))
                else:
                    left_out = f"exclude=[{key!r}]"
                    raise BadGraph(
                        f"graph {number} has no {key!r}, which graph 0 has; add it to every "
                        f"graph, or pass {left_out}"
                        if self.schema is None
                        else f"graph {number} has no {key!r}, which the plan expects; add it, or "
                        f"make store and plan without it: GraphStore.from_pyg(..., {left_out})"
                    )
            self.values.setdefault(key, []).append(rules[key].rows)
            self.increments.setdefault(key, []).append(rules[key].increments)
            if self.cat_dims.setdefault(key, rules[key].cat_dim) != rules[key].cat_dim:
                raise BadGraph(
                    f"graph {number} gives {rules[key].cat_dim} as __cat_dim__ of {key!r}, graph 0 "
                    f"gave {self.cat_dims[key]}: make them the same in every graph"
                )
        extra = set(rules) - set(expected)
        if extra and self.schema is None:
            raise BadGraph(
                f"graph {number} has {sorted(extra)}, which graph 0 lacks; add it to every graph, "
                f"or pass exclude={sorted(extra)}"
            )

    def _no_label(self, number: int, key: str) -> Tensor:
        assert self.schema is not None
        item = self.schema[key]
        counts = {"graph": item.rows, **{level: rows[-1] for level, rows in self.rows.items()}}
        if item.level not in counts:
            raise BadGraph(f"graph {number} has no 'y', whose rows are {item.level}; add it")
        return torch.zeros(counts[item.level], *item.shape, dtype=getattr(torch, item.dtype))

    def _both_sides(self, counts: tuple[Level, ...]) -> tuple[Level, ...]:
        """Returns the levels of the two rows of ``edge_index``; rejects a row without one."""
        both = counts * 2 if len(counts) == 1 else counts
        if len(both) == 2 and all(both):
            return both
        odd = next(n for n, count in enumerate(self.nodes) if count)
        raise BadGraph(
            f"graph {odd} adds {list(self.increments[EDGE_INDEX][odd]) or 0} to 'edge_index' "
            f"(__inc__), though it has {how_many(self.nodes[odd], 'node')}: a batch adds what "
            "stands before a graph, the nodes of each end; let __inc__ say so, as "
            "torch.tensor([[sources], [destinations]]) where they are of two kinds"
        )

    def store(self, kind: type[Kept], check_finite: bool | tuple[str, ...]) -> Kept:
        """Builds a store of a class from all graphs that were read.

        Raises:
            BadGraph: if a field differs from graph to graph, or from the given schema.
        """
        counts = self._counts()
        pairs = [torch.empty(0, 2, dtype=torch.int64)]  # edges that join nodes are not a field
        if counts.get(EDGE_INDEX) == ("node",):
            pairs = self.values.pop(EDGE_INDEX)
        elif EDGE_INDEX in counts:
            counts[EDGE_INDEX] = self._both_sides(counts[EDGE_INDEX])
        edge_index = as_array(EDGE_INDEX, torch.cat(pairs).T)
        fields: dict[str, tuple[Level, Array]] = {}
        rows: dict[str, int] = {}
        # First the fields whose rows others may share.
        for key in sorted(self.values, key=lambda key: not (counts[key] or self.cat_dims[key])):
            tensors = self.values[key]
            level, count = self._level(key, bool(counts[key]))
            self._check_rows(key, tensors)
            if level == "graph":
                rows[key] = count
            fields[key] = (level, as_array(key, torch.cat(tensors)))
        fields = {key: fields[key] for key in self.values}
        axes = {axis: np.asarray(self.rows[axis.name]) for axis in self.types}
        store = kind.from_arrays(
            np.asarray(self.nodes, dtype=np.int64),
            np.asarray(self.edges, dtype=np.int64),
            edge_index[0],
            edge_index[1],
            fields,
            rows=rows,
            name=self.name,
            check_finite=check_finite,
            axes=axes | {Axis(name): lengths for name, lengths in self.axes.items()},
            rules={key: IndexRule(self.cat_dims[key], counts[key]) for key in self.values},
        )
        return replace(store, objects=self.objects(store.schema))

    def _level(self, key: str, is_index: bool = False) -> tuple[Level, int]:
        """Returns the level of an attribute over the whole data set, and its rows per graph."""
        lengths = self._lengths(key)
        if self.schema is not None:
            return self.schema[key].level, self.schema[key].rows
        if key == EDGE_INDEX:
            return "edge", 1
        if self.cat_dims[key] is None:
            return "graph", 1
        owner = axis_of(key, self.types)
        levels = [owner.name] if owner else () if self.types else self.rows
        candidates = {level: np.asarray(self.rows[level]) for level in levels}
        fits = [level for level, rows in candidates.items() if np.array_equal(lengths, rows)]
        constant = bool((lengths == lengths[0]).all())
        wanted = self.levels.get(key)
        if wanted is not None and wanted not in LEVELS:
            return self._on_axis(key, wanted, lengths), 1
        if wanted == "graph" and constant:
            return "graph", int(lengths[0])
        if wanted in fits:
            return wanted, 1
        if wanted is not None:
            raise BadGraph(
                f"levels={{{key!r}: {wanted!r}}}, but {key!r} has not one row per {wanted} in "
                f"every graph ({rows_in(lengths, {'node': self.nodes, 'edge': self.edges}, 0)})"
            )
        if key in self.axes and np.array_equal(lengths, self.axes[key]):
            return key, 1  # another field's values refer to these rows
        if key == "y" and constant and lengths[0] == 1:
            return "graph", 1  # even where every graph has one node, or one edge
        if fits:
            return fits[0] if len(fits) == 1 else level_by_name(key, int(sum(self.nodes))), 1
        if constant and lengths[0] > 0:
            return "graph", int(lengths[0])
        shared = [name for name, rows in self._known().items() if np.array_equal(rows, lengths)]
        if shared or is_index or self.cat_dims[key]:
            axis = shared[-1 if self.types else 0] if shared else key
            return self._on_axis(key, axis, lengths), 1
        raise BadGraph(odd_rows(key, lengths, candidates))

    def _check_rows(self, key: str, tensors: Sequence[Tensor]) -> None:
        first = tensors[0]
        for number, tensor in enumerate(tensors):
            if tensor.dtype != first.dtype or tensor.shape[1:] != first.shape[1:]:
                raise BadGraph(
                    f"{key!r} is {tensor.dtype} with rows of shape {list(tensor.shape[1:])} in "
                    f"graph {number}, but {first.dtype} with rows of shape "
                    f"{list(first.shape[1:])} in graph 0: make them the same in every graph"
                )
