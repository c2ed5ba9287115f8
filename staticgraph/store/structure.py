"""Checks everything that loops without bounds checks assume about a store, before they run.

A checksum detects damage, not intent: whoever writes a store can also write its checksums. Offsets
beyond the columns, or an array that is not a permutation, would make a batch read and write out of
bounds. A loaded store is therefore checked as strictly as when it was built: first the manifest,
before any file is opened (:func:`checked_manifest`); then the offsets and the shape and dtype of
every array (:func:`check_forms`); then the values of edges and indices, for a run of graphs at a
time, before they are read (:func:`check_graphs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from staticgraph.errors import StoreCorrupt
from staticgraph.schema import LEVELS, Schema
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.indices import first_outside
from staticgraph.store.positions import positions_in

EDGES = ("edge_src", "edge_dst", "transpose", "edge_origin")
NONE: Array = np.empty(0)
# Arrays that every store has, whatever its fields are; the names of others start with a kind.
STRUCTURE = (
    "node_offsets", "edge_offsets", "edge_src", "edge_dst", "row_ptr", "transpose", "edge_origin"
)  # fmt: skip
# What the names of offsets begin with: one more entry than graphs, from 0 on.
OFFSETS = ("node_offsets", "edge_offsets", "offsets.", "object_ends.")
# Arrays that are read whole when a store is opened, so they need no blocks.
WHOLE = (*OFFSETS, "split.", "checks.", "objects.")
REMEDY = "the store was changed; build it again"


def offsets_name(level: str) -> str:
    """Returns the name of the array of where the rows of a level other than a graph's begin."""
    return f"{level}_offsets" if level in LEVELS else f"offsets.{level}"


def by_block(name: str) -> bool:
    """Returns whether an array is checked by block, rather than when the store is opened."""
    return not name.startswith(WHOLE)


def level_of(name: str, schema: Schema) -> tuple[str, int]:
    """Returns the level of an array's rows, and for level ``"graph"`` how many rows a graph has."""
    kind, _, key = name.partition(".")
    if kind == "column":
        return schema[key].level, schema[key].rows
    return "node" if name == "row_ptr" else "edge" if name in EDGES else key, 1


def rows_of(name: str, schema: Schema, arrays: Mapping[str, Array], first: int, last: int) -> slice:
    """Returns the rows of an array that belong to graphs ``first`` to ``last - 1``."""
    if not len(arrays[name]):
        return slice(0, 0)
    level, rows = level_of(name, schema)
    if level == "graph":
        return slice(first * rows, last * rows)
    offsets = arrays[offsets_name(level)]
    return slice(int(offsets[first]), int(offsets[last]) + (name == "row_ptr"))


class Damage(StoreCorrupt):
    """An array that does not fit its store; the message names the array, and the graph if known."""


def checked_manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Returns a manifest that lacks no key, no file of the schema, and no size or checksum.

    Raises:
        KeyError: if something is missing.
        TypeError: if something is unknown, or another thing than it should be.
    """
    if not isinstance(manifest["name"], str):
        raise TypeError(f"the name is {manifest['name']!r}")
    schema = Schema.from_dict(manifest["schema"])
    files = dict(manifest["files"])
    for name, file in files.items():
        for key in ("bytes", "crc32"):
            if not isinstance(file[key], int):
                raise TypeError(f"{key} of {name!r} is {file[key]!r}")
    expected = [*STRUCTURE, *(f"column.{field.name}" for field in schema)]
    expected += [f"offsets.{axis.name}" for axis in schema.axes]
    objects = [name.partition(".")[2] for name in files if name.startswith("objects.")]
    expected += [f"object_ends.{key}" for key in objects]
    if absent := [name for name in expected if name not in files]:
        raise KeyError(", ".join(absent))
    known = {*expected, *(f"origins.{axis.name}" for axis in schema.edge_axes)}
    known |= {f"objects.{key}" for key in objects}
    extra = {name for name in files if not name.startswith(("split.", "checks."))} - known
    if extra:
        raise TypeError(f"the schema knows no array {', '.join(sorted(extra))}")
    return manifest


def check_forms(schema: Schema, arrays: Mapping[str, Array], graphs: int) -> None:
    """Checks the schema, and the offsets, lengths, shapes and dtypes of all arrays.

    ``arrays`` are by the names of :meth:`GraphStore.arrays`, the others those of the manifest.

    Raises:
        StoreCorrupt: a :class:`Damage` that names the array, and the graph if known.
    """
    _check_schema(schema)
    rows = {"graph": graphs}
    for level in ("node", "edge", *(axis.name for axis in schema.axes)):
        offsets = arrays[offsets_name(level)]
        _check_offsets(offsets_name(level), offsets, graphs)
        rows[level] = int(offsets[-1])
    empty = () if schema.has_pointers else ("row_ptr", "transpose")
    empty += () if schema.one_kind else ("edge_src", "edge_dst")
    if schema.hetero or not len(arrays["edge_origin"]):
        empty += ("edge_origin",)
    for name, array in arrays.items():
        kind, _, key = name.partition(".")
        if kind == "split" and positions_in(array, graphs, name, error=Damage).dtype != array.dtype:
            raise Damage(f"{name} has dtype {array.dtype}: {REMEDY}")
        if kind == "object_ends":
            _check_offsets(name, array, graphs)
            text = arrays.get(f"objects.{key}", NONE)
            if text.dtype != np.uint8 or text.shape != (int(array[-1]),):
                raise Damage(f"{name} ends at {array[-1]}, where its text does not: {REMEDY}")
        if not by_block(name):
            continue
        level, each = level_of(name, schema)
        shape = (0 if name in empty else rows[level] * each + (name == "row_ptr"),)
        kinds, expected = "iu", f"whole numbers of shape {shape} are expected"
        if kind == "column":
            field = schema[key]
            shape, kinds = (*shape, *field.shape), "iu" if field.counts else "biuf"
            expected = f"the schema says {field.describe()}, and there are {rows[level]}"
        if array.shape != shape or array.dtype.kind not in kinds:
            raise Damage(
                f"{name} has shape {array.shape} and dtype {array.dtype}; {expected}: {REMEDY}"
            )


def check_graphs(schema: Schema, arrays: Mapping[str, Array], first: int, last: int) -> None:
    """Checks edges, row pointers, permutations and indices of graphs ``first`` to ``last - 1``.

    Raises:
        StoreCorrupt: if a value is wrong; the message names the array, the graph and the value.
    """
    here = _Stretch(schema, arrays, first, last)
    if not schema.hetero:
        if not schema.two_sided:
            here.check_edges(schema.has_pointers)
        here.check_permutation("edge_origin", "edge")
    for axis in schema.edge_axes:
        here.check_permutation(f"origins.{axis.name}", axis.name)
    for field in schema:
        name = f"column.{field.name}"
        if field.counts and (wrong := first_outside(field, here.arrays[name], here.bounds)):
            raise Damage(
                f"{name} has {wrong.value} in graph {first + wrong.graph}, which counts "
                f"{wrong.level!r}, of which it has {wrong.most}: {REMEDY}"
            )


class _Stretch:
    """A run of consecutive graphs: the first of them, their number and their rows of each array."""

    def __init__(self, schema: Schema, arrays: Mapping[str, Array], first: int, last: int) -> None:
        self.first, self.graphs = first, last - first
        self.arrays: dict[str, Array] = {
            name: array[rows_of(name, schema, arrays, first, last)]
            for name, array in arrays.items()
            if by_block(name)
        }
        # Where the rows of a level begin here: of all these graphs, and [graphs + 1] from there on.
        self.begins: dict[str, int] = {}
        self.bounds: dict[str, IntArray] = {"graph": np.arange(self.graphs + 1)}
        for level in ("node", "edge", *(axis.name for axis in schema.axes)):
            offsets = np.asarray(arrays[offsets_name(level)][first : last + 1])
            self.begins[level] = int(offsets[0])
            self.bounds[level] = offsets - offsets[0]

    def check_edges(self, in_order: bool) -> None:
        """Checks endpoints and, of sorted edges, their order, row pointers and the transpose."""
        bounds, counts = self.bounds["node"], np.diff(self.bounds["edge"])
        nodes, first = np.repeat(np.diff(bounds), counts), np.repeat(bounds[:-1], counts)
        ends = {}
        for name in ("edge_src", "edge_dst"):
            values = self.arrays[name].astype(np.int64)
            self._refuse(name, "edge", (values < 0) | (values >= nodes), values, "no node of it")
            ends[name] = values + first
        if not in_order:
            return
        self._refuse_descent("edge_dst", ends["edge_dst"], "destinations must ascend")
        incoming = np.bincount(ends["edge_dst"], minlength=bounds[-1])
        expected = self.begins["edge"] + np.concatenate([[0], np.cumsum(incoming)])
        pointers = self.arrays["row_ptr"]
        if (wrong := pointers != expected).any():
            node = int(wrong.argmax())
            graph = self.first + min(self.graphs, int(np.searchsorted(bounds, node, "right"))) - 1
            raise Damage(
                f"row_ptr[{self.begins['node'] + node}] is {pointers[node]} in graph {graph}, "
                f"where its edges say {expected[node]}: {REMEDY}"
            )
        order = self.check_permutation("transpose", "edge")
        self._refuse_descent("transpose", ends["edge_src"][order], "sources must ascend")

    def check_permutation(self, name: str, level: str) -> IntArray:
        """Checks that each graph's values are a permutation of its row numbers.

        Returns them as row numbers within the run; empty if there is no such array.
        """
        values = self.arrays.get(name, NONE).astype(np.int64)
        if not len(values):
            return values
        counts = np.diff(self.bounds[level])
        outside = (values < 0) | (values >= np.repeat(counts, counts))
        self._refuse(name, level, outside, values, "no place in it")
        order = values + np.repeat(self.bounds[level][:-1], counts)
        times = np.bincount(order, minlength=len(order))
        self._refuse(name, level, times[order] > 1, values, "there twice")
        return order

    def _refuse(self, name: str, level: str, wrong: Array, values: Array, why: str) -> None:
        if wrong.any():
            row = int(wrong.argmax())
            graph = self.first + int(np.searchsorted(self.bounds[level], row, "right")) - 1
            raise Damage(f"{name} has {values[row]} in graph {graph}, {why}: {REMEDY}")

    def _refuse_descent(self, name: str, values: IntArray, why: str) -> None:
        self._refuse(name, "edge", np.diff(values, prepend=values[:1]) < 0, values, why)


def _check_schema(schema: Schema) -> None:
    levels = {*LEVELS, *(axis.name for axis in schema.axes)}
    for field in schema:
        of_graph = field.level == "graph"
        # One row per graph, stacked along a new dimension; or rows along one of theirs.
        alone = of_graph and field.rows == 1
        if not (
            np.dtype(field.dtype).kind in "biuf"
            and field.level in levels
            and (alone if field.cat_dim is None else 0 <= field.cat_dim <= len(field.shape))
            and len(field.counts) in (0, 1, field.width)
            and (field.rows == 1 or (of_graph and field.rows > 0))
            and min(field.shape, default=0) >= 0
        ):
            raise Damage(f"the schema's field {field.name!r} cannot be: {field}: {REMEDY}")
        if unknown := set(field.counts) - levels - {""}:
            raise Damage(f"field {field.name!r} counts {unknown}, which is not a level: {REMEDY}")
    _check_types(schema)
    nodes, fields = {axis.name for axis in schema.node_axes}, {item.name: item for item in schema}
    for axis in schema.edge_axes:
        index = fields.get(f"{axis.name}.edge_index")
        form = index and (index.level, index.width, len(index.counts))
        if index is None or form != (axis.name, 2, 2) or not nodes.issuperset(index.counts):
            raise Damage(
                f"the edges of type {axis.name!r} have no index of the nodes at their two ends: "
                f"{REMEDY}"
            )


# The number of strings in PyG's type of an axis of each kind.
WORDS = {"rows": 0, "node": 1, "edge": 3}


def _check_types(schema: Schema) -> None:
    """Checks that node and edge types form a valid heterogeneous graph, without duplicates."""
    nodes = {axis.key for axis in schema.node_axes}
    for axis in schema.axes:
        words = all(isinstance(word, str) for word in axis.type)
        known = words and len(axis.type) == WORDS.get(axis.kind, -1)
        if not known or (axis.kind == "edge" and not {axis.type[0], axis.type[2]} <= nodes):
            raise Damage(f"rows {axis.name!r} cannot be of type {axis.type}: {REMEDY}")
    types = [axis.type for axis in schema.axes if axis.type]
    if len(set(types)) < len(types):
        raise Damage(f"a type of nodes or edges is there twice: {types}: {REMEDY}")


def _check_offsets(name: str, values: Array, graphs: int) -> None:
    if values.shape != (graphs + 1,) or values.dtype != np.int64:
        raise Damage(
            f"{name} has shape {values.shape} and dtype {values.dtype}; int64 of shape "
            f"({graphs + 1},) is expected: {REMEDY}"
        )
    if values[0] != 0 or (values[1:] < values[:-1]).any():
        graph = int((values[1:] < values[:-1]).argmax()) if values[0] == 0 else 0
        raise Damage(
            f"{name} goes from {values[graph]} to {values[graph + 1]} in graph {graph}; offsets "
            f"begin at 0 and do not fall: {REMEDY}"
        )
