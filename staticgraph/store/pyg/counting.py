"""Infers which rows index fields refer to, and the axes of a data set.

Problem: ``__inc__`` returns numbers, graph by graph, but a batch of fixed shape must know which
rows they count. Idea: compare them over all graphs with the known counts; increments that match
none become an axis, named after the field with that many rows, the per-graph number that equals
them, or the index itself. Invariant: with a schema nothing is guessed, and a graph that does not
match it is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from staticgraph.errors import BadGraph
from staticgraph.schema import EDGE_INDEX, LEVELS, Level, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.objects import ObjectColumn
from staticgraph.store.pyg.rules import Increments, counted_level
from staticgraph.text.how_many import how_many


class CountedFields:
    """The fields of all graphs as they are collected, with the results of PyG's rules for each."""

    def __init__(self, name: str, schema: Schema | None, levels: Mapping[str, Level]) -> None:
        self.name = name
        self.schema = schema
        self.levels = levels
        self.nodes: list[int] = []
        self.edges: list[int] = []
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

    def set_aside(self, number: int, key: str, value: Any) -> None:
        """Records a value that is not a tensor: a string, None, a list."""
        if value is not None and self.schema is None:
            self.aside.setdefault(key, {})[number] = value

    def objects(self, schema: Schema) -> dict[str, ObjectColumn]:
        """Returns the recorded values as object columns, with None for graphs that lack one.

        Values that cannot be a column are recorded as dropped.
        """
        columns = {}
        for key, found in self.aside.items():
            if "." in key:
                self.dropped[key] = "an object of one type of nodes"
            elif key in self.values:
                self.dropped[key] = "in some graphs a tensor, in some none"
            elif not schema.lets(key):
                self.dropped[key] = "every batch has an attribute of this name"
            else:
                column = ObjectColumn.of(found.get(number) for number in range(len(self.nodes)))
                if column is None:
                    kind = type(next(iter(found.values()))).__name__
                    self.dropped[key] = f"a {kind} that is neither text nor numbers"
                else:
                    columns[key] = column
        return columns

    def _lengths(self, key: str) -> IntArray:
        tensors = self.values[key]
        return np.fromiter((len(tensor) for tensor in tensors), np.int64, len(tensors))

    def _in_order(self, counts: Mapping[str, tuple[Level, ...]]) -> list[str]:
        """Returns the fields, starting with those whose rows other fields may share."""
        own = [key for key in self.values if counts[key] or self.cat_dims[key]]
        return own + [key for key in self.values if key not in own]

    def _counts(self) -> dict[str, tuple[Level, ...]]:
        """Returns the levels that each field's values refer to, over the whole data set.

        Rows that are neither nodes nor edges become an axis.
        """
        if self.schema is not None:
            return self._expected_counts(self.schema)
        counts: dict[str, tuple[Level, ...]] = {}
        nodes, edges = np.asarray(self.nodes), np.asarray(self.edges)
        for key, said in self.increments.items():
            found = []
            ends = key == EDGE_INDEX  # the endpoints of edges, which are never edges
            told = nodes if self.nodes_told or not ends else None
            for place, steps in enumerate(Increments(key, said).columns()):
                level = counted_level(steps, told, None if ends else edges, self.axes)
                if level is None:
                    level = self._axis_for(key, place, steps)
                    self.axes[level] = steps
                found.append(level)
            alike = np.array_equal(nodes, edges)
            if not ends and ("edge" in found or ("node" in found and alike)):
                found = self._told_apart(key, found, alike)
            counts[key] = tuple(found)
        return counts

    def _told_apart(self, key: str, found: list[Level], alike: bool) -> list[Level]:
        """Resolves levels that could also be another; ``alike`` if there are as many edges as nodes
        in every graph."""
        return found

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

    def _expected_counts(self, schema: Schema) -> dict[str, tuple[Level, ...]]:
        """Returns the schema's counts and sets the axes' rows; rejects graphs that differ."""
        counts = {key: schema[key].counts for key in self.values}
        known = {"node": np.asarray(self.nodes), "edge": np.asarray(self.edges)}
        known["graph"] = np.ones_like(known["node"])
        said = {key: Increments(key, self.increments[key]).columns() for key in self.values}
        for axis in schema.axes:
            if axis.name in self.axes:
                known[axis.name] = self.axes[axis.name]
                continue
            rows = [self._lengths(key) for key in self.values if schema[key].level == axis.name]
            rows += [
                said[key][min(place, len(said[key]) - 1)] if said[key] else known["graph"] * 0
                for key in self.values
                for place, level in enumerate(counts[key])
                if level == axis.name
            ]
            known[axis.name] = self.axes[axis.name] = rows[0] if rows else known["graph"] * 0
        for key, levels in counts.items():
            if self.cat_dims[key] != schema[key].cat_dim:
                raise BadGraph(
                    f"graph 0 gives {self.cat_dims[key]} as __cat_dim__ of {key!r}; the plan was "
                    f"made for {schema[key].cat_dim}: convert the new graphs as the training data"
                )
            columns = said[key] or [known["graph"] * 0]
            wanted = [known[level] if level else known["graph"] * 0 for level in levels or ("",)]
            width = max(len(columns), len(wanted))
            for place in range(width):
                found = columns[min(place, len(columns) - 1)]
                expected = wanted[min(place, len(wanted) - 1)]
                if not np.array_equal(found, expected):
                    odd = int((found != expected).argmax())
                    raise BadGraph(
                        f"graph {odd} adds {found[odd]} to {key!r} (__inc__), where the plan was "
                        f"made for values that count {' and '.join(levels) or 'nothing'}, of which "
                        f"it has {expected[odd]}: convert the new graphs as the training data was"
                    )
        return counts

    def _on_axis(self, key: str, axis: str, lengths: IntArray) -> str:
        """Puts a field on an axis, which is created if there is none of that name."""
        rows = self.axes.setdefault(axis, lengths)
        if not np.array_equal(rows, lengths):
            odd = int((rows != lengths).argmax())
            raise BadGraph(
                f"{key!r} has {how_many(lengths[odd], 'row')} in graph {odd}, which has "
                f"{rows[odd]} {axis}: fields of one axis have as many rows; give it another name "
                "in levels="
            )
        return axis
