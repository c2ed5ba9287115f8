"""Infers which rows index fields refer to, and the axes of a data set.

Problem: ``__inc__`` returns numbers, graph by graph, but a batch of fixed shape must know which
rows they count. Idea: compare them over all graphs with the known counts; increments that match
none become an axis, named after the field with that many rows, the per-graph number that equals
them, or the index itself. Invariant: with a schema nothing is guessed, and a graph that does not
match it is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from staticgraph.errors import BadGraph
from staticgraph.schema import EDGE_INDEX, LEVELS, Axis, Field, Level, Schema, dtype_name
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.objects import ObjectColumn
from staticgraph.store.pyg.levels import axis_of, level_in, odd_graph, rows_in
from staticgraph.store.pyg.rules import asks_nothing, counted_by, counted_level, increments_of
from staticgraph.text.how_many import how_many


class CountedFields:
    """The fields of all graphs as they are collected, with the results of PyG's rules for each.

    Args are those of :meth:`staticgraph.GraphStore.from_pyg`.
    """

    # Attributes that PyG reserves, or that repeat the offsets.
    ignored: ClassVar[frozenset[str]] = frozenset({"edge_index", "num_nodes", "batch", "ptr"})

    def __init__(
        self,
        name: str,
        exclude: Iterable[str],
        schema: Schema | None,
        levels: Mapping[str, Level],
    ) -> None:
        self.name = name
        self.excluded: frozenset[str] = self.ignored.union(exclude)
        self.schema = schema
        self.levels = levels
        # Whether a graph is rejected without edge_index even if none has one, and without labels.
        self.needs_edges: bool = False
        self.needs_labels: bool = schema is None
        self.without_edges: bool | None = None
        # The types of nodes and edges, and the rows of each graph on every level known so far.
        self.types: tuple[Axis, ...] = ()
        self.nodes: list[int] = []
        self.edges: list[int] = []
        self.rows: dict[Level, list[int]] = {"node": self.nodes, "edge": self.edges}
        self.values: dict[str, list[Tensor]] = {}
        self.cat_dims: dict[str, int | None] = {}
        self.increments: dict[str, list[tuple[int, ...]]] = {}
        self.axes: dict[str, IntArray] = {}
        # Values that are not tensors, by name and graph; and the names that were dropped, with the
        # reason.
        self.aside: dict[str, dict[int, Any]] = {}
        self.dropped: dict[str, str] = {}
        # False if PyG can only guess the number of nodes from the values of edge_index, which is
        # meaningless if its two rows refer to different levels.
        self.nodes_told = True
        # A graph whose class has rules of its own, so that they can be called again.
        self.ruled: tuple[int, Any] | None = None
        # With a schema, its fields and, where it is none of them, edge_index.
        self.planned: dict[str, Field] = {}
        if schema is not None:
            self.planned = {item.name: item for item in schema}
            if schema.one_kind:
                joined = Field(EDGE_INDEX, "edge", (2,), "int64", cat_dim=1, counts=("node",))
                self.planned[EDGE_INDEX] = joined

    def set_aside(self, number: int, key: str, value: Any) -> None:
        """Records a value that is not a tensor: a string, None, a list."""
        if value is not None:
            self.aside.setdefault(key, {})[number] = value

    def objects(self, schema: Schema) -> dict[str, ObjectColumn]:
        """Returns the recorded values as object columns, with None for graphs that lack one.

        Values that cannot be a column are recorded as dropped.
        """
        columns = {}
        for key, by_graph in self.aside.items():
            column = None
            if "." in key:
                why = "an object of one type of nodes"
            elif key in self.values:
                why = "in some graphs a tensor, in some none"
            elif not schema.lets(key):
                why = "every batch has an attribute of this name"
            else:
                column = ObjectColumn.from_values(map(by_graph.get, range(len(self.nodes))))
                kind = type(next(iter(by_graph.values()))).__name__
                why = f"a {kind} that is neither text nor numbers"
            if column is None:
                self.dropped[key] = why
            else:
                columns[key] = column
        return columns

    def _lengths(self, key: str) -> IntArray:
        tensors = self.values[key]
        return np.fromiter((len(tensor) for tensor in tensors), np.int64, len(tensors))

    def _counts(self) -> dict[str, tuple[Level, ...]]:
        """Returns the levels that each field's values refer to, over the whole data set.

        Rows that are neither nodes nor edges become an axis.
        """
        if self.schema is not None:
            return self._check_planned(self.schema)
        counts: dict[str, tuple[Level, ...]] = {}
        alike = np.array_equal(self.nodes, self.edges)
        for key, increments in self.increments.items():
            columns = increments_of(key, increments)
            joined = columns or [np.zeros(len(self.nodes), np.int64)]
            if key == EDGE_INDEX and all(np.array_equal(steps, self.nodes) for steps in joined):
                counts[key] = ("node",)
                continue
            owner = axis_of(key, (axis for axis in self.types if axis.kind == "edge"))
            if owner is not None and key.endswith("index"):
                counts[key] = ends = owner.type[::2]
                self._check_ends(key, columns, ends)
                continue
            joins = key == EDGE_INDEX  # the endpoints of edges, which are never edges
            others = ("edge",) if self.nodes_told else LEVELS
            levels: list[Level] = []
            for place, steps in enumerate(columns):
                known = self._known()
                known = {k: v for k, v in known.items() if not joins or k not in others}
                level = counted_level(steps, known)
                if level is None:
                    level = self._axis_for(key, place, steps)
                    self.axes[level] = steps
                levels.append(level)
            if not joins and ("edge" in levels or ("node" in levels and alike)):
                levels = self._told_apart(key, levels, alike)
            counts[key] = tuple(levels)
        return counts

    def _known(self) -> dict[Level, IntArray]:
        """Returns each graph's number of rows on every level but that of graphs."""
        return {level: np.asarray(rows) for level, rows in self.rows.items()} | self.axes

    def _check_ends(self, key: str, columns: list[IntArray], ends: tuple[Level, ...]) -> None:
        """Rejects an index of a type of edges that does not count the nodes at their ends."""
        for place, end in enumerate(ends):
            rows = np.asarray(self.rows[end])
            steps = columns[min(place, len(columns) - 1)] if columns else 0 * rows
            if (odd := odd_graph(steps, rows)) is not None:
                raise BadGraph(
                    f"graph {odd} adds {steps[odd]} to row {place} of {key!r} (__inc__), but has "
                    f"{how_many(rows[odd], 'node')} of type {end!r}: let __inc__ say so, "
                    "or give the field a name that does not end in 'index'"
                )

    def _told_apart(self, key: str, levels: list[Level], alike: bool) -> list[Level]:
        """Decides by the rules of a graph's class, called on modified copies."""
        if self.ruled is None or asks_nothing(self.ruled[1], key):
            return levels
        number, data = self.ruled
        by_rules = counted_by(data, key, number)
        if by_rules is not None:
            width = max(len(by_rules), len(levels))
            pairs = zip(
                by_rules * (width // len(by_rules)), levels * (width // len(levels)), strict=True
            )
            levels = [self._decided(level, guess, alike) for level, guess in pairs]
        if (by_rules is None and alike) or "" in levels:
            raise BadGraph(
                f"{key!r} counts nodes or edges (__inc__), since every graph has as many of both, "
                "and its class does not tell which: let __inc__ return self.num_nodes or "
                "self.num_edges for it, or add a graph with another number of edges"
            )
        return levels

    def _decided(self, level: Level, guess: Level, alike: bool) -> Level:
        """Returns the level of increments that equal those of ``guess``, and grow with ``level``.

        Those that follow neither nodes nor edges count what a per-graph number of their size does:
        the level that its name indicates, or an axis of that name. ``""`` if there is no such
        number.
        """
        if guess != ("node" if alike else "edge"):
            return guess  # no other level of this size is renumbered
        if level == guess or (level and alike):
            return level
        steps = np.asarray(self.nodes if guess == "node" else self.edges)
        name = self._named_by_number(steps)
        named = level_in(name)
        if named and (alike or named == guess):
            return named
        if not alike and (not name or self._has_rows(steps)):
            return guess  # such rows are sorted with the edges, and the index with them
        if name:
            self.axes[name] = steps
        return name

    def _has_rows(self, counts: IntArray) -> bool:
        """Whether a field that neither the user nor its name puts on a level has so many rows."""
        return any(
            self.levels.get(key, level_in(key)) is None
            and np.array_equal(self._lengths(key), counts)
            for key in self.values
        )

    def _axis_for(self, key: str, place: int, steps: IntArray) -> str:
        """Names the axis that a field's increments refer to.

        The name is that of the field with that many rows, of the per-graph number that equals them
        (``num_clusters``), or of the field itself. Fields that the user assigned to nodes, edges or
        graphs do not name an axis, even if their counts match here.
        """
        for other in self.values:
            if key == EDGE_INDEX and "edge" in other:
                continue
            name = self.levels.get(other, other)
            if other != key and name not in LEVELS and np.array_equal(self._lengths(other), steps):
                return name
        return self._named_by_number(steps) or f"{key}_{place}"

    def _named_by_number(self, steps: IntArray) -> str:
        """Returns the name of the per-graph number that equals these; ``""`` if none."""
        for other, tensors in self.values.items():
            whole = all(t.numel() == 1 and not t.is_floating_point() for t in tensors)
            name = other.removeprefix("num_") or other
            if whole and name not in LEVELS and np.array_equal([int(t) for t in tensors], steps):
                return name
        return ""

    def _check_planned(self, schema: Schema) -> dict[str, tuple[Level, ...]]:
        """Returns the schema's counts and sets the axes' rows; rejects graphs that differ."""
        none = np.zeros(len(self.nodes), np.int64)
        known = {"graph": none + 1, "": none, **self._known()}
        steps = {key: self._planned_steps(key, none) for key in self.values}
        for axis in schema.axes:
            if axis.name in known:
                continue
            rows = [self._lengths(item.name) for item in schema if item.level == axis.name]
            rows += [
                each for pairs in steps.values() for level, each in pairs if level == axis.name
            ]
            known[axis.name] = self.axes[axis.name] = rows[0] if rows else none
        for key, item in self.planned.items():
            first, lengths = self.values[key][0], self._lengths(key)
            expected = known[item.level] * item.rows
            form = replace(item, dtype=dtype_name(first), shape=tuple(first.shape[1:]))
            problem = ""  # what comes last explains what comes before it
            if key in schema and form != item:
                problem = (
                    f"graph 0 has {key!r} as {form.describe()}; the plan was made for "
                    f"{item.describe()}"
                )
            if (odd := odd_graph(lengths, expected)) is not None:
                totals = {"node": self.nodes, "edge": self.edges}
                problem = (
                    f"{key!r} has {rows_in(lengths, totals, odd)}; the plan was made for "
                    f"{item.describe()}, which is {how_many(expected[odd], 'row')}"
                )
            for level, each in steps[key]:
                if (odd := odd_graph(each, known[level])) is not None:
                    problem = (
                        f"graph {odd} adds {each[odd]} to {key!r} (__inc__), where the plan was "
                        f"made for values that count {' and '.join(item.counts) or 'nothing'}, of "
                        f"which it has {known[level][odd]}"
                    )
            if self.cat_dims[key] != item.cat_dim:
                problem = (
                    f"graph 0 gives {self.cat_dims[key]} as __cat_dim__ of {key!r}; the plan was "
                    f"made for {item.cat_dim}"
                )
            if problem:
                raise BadGraph(f"{problem}: convert the new graphs as the training data was")
        return {key: item.counts for key, item in self.planned.items()}

    def _planned_steps(self, key: str, none: IntArray) -> list[tuple[Level, IntArray]]:
        """Returns the level that each scalar of a row has in the schema, and its increments."""
        levels, columns = (
            self.planned[key].counts or ("",),
            increments_of(key, self.increments[key]),
        )
        columns = columns or [none]
        return [
            (levels[min(place, len(levels) - 1)], columns[min(place, len(columns) - 1)])
            for place in range(max(len(columns), len(levels)))
        ]

    def _on_axis(self, key: str, axis: str, lengths: IntArray) -> str:
        """Puts a field on an axis, which is created if there is none of that name."""
        rows = self._known().get(axis)
        if rows is None:
            rows = self.axes[axis] = lengths
        if (odd := odd_graph(rows, lengths)) is not None:
            raise BadGraph(
                f"{key!r} has {how_many(lengths[odd], 'row')} in graph {odd}, which has "
                f"{rows[odd]} {axis}: fields of one axis have as many rows; give it another name "
                "in levels="
            )
        return axis
