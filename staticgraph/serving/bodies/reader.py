"""The body of a request -> graphs, or a one-line error.

Anyone who can reach the port can send anything. So nothing here is unpickled, every declared size
is checked against the actual bytes before it is used, and a value that the model cannot handle (a
category without an embedding row, a number that is not finite) is refused with a message that names
it, before it can fail a batch with other requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from staticgraph.datasets.smiles import molecule_of
from staticgraph.errors import BadGraph
from staticgraph.schema import EDGE_INDEX, Field, Schema
from staticgraph.serving.bodies import compact_format
from staticgraph.serving.bodies.bad_body import BadBody
from staticgraph.serving.bodies.checked_graphs import cast, checked
from staticgraph.serving.bodies.flat_graphs import TARGET, FlatGraphs, fields_of
from staticgraph.serving.bodies.npz import arrays_of
from staticgraph.serving.bodies.plain_json import plain_graphs
from staticgraph.store.columns import Array
from staticgraph.text.how_many import how_many

# The most characters of a SMILES; the longest of ogbg-molhiv has 529.
LONGEST_SMILES = 4000
# An npz may inflate to this many times the limit on a body, and a body may declare this many rows
# per byte.
MOST_INFLATED = 8

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Reader:
    """Reads bodies for one model.

    Attributes:
        schema: the fields of a graph; a target is not required.
        categories: integer field -> the number of categories of each of its columns.
        smiles: whether molecules may be given as SMILES.
        most_graphs: the most graphs of one request.
        most_bytes: the most bytes of a body.
        edges: whether a graph must give its edges, even if it has none; False for a model that was
            trained on graphs without edges.
    """

    schema: Schema
    categories: Mapping[str, tuple[int, ...]]
    smiles: bool
    most_graphs: int
    most_bytes: int
    edges: bool = True

    @cached_property
    def fields(self) -> list[Field]:
        """The fields that a graph must have in addition to its edges."""
        return fields_of(self.schema)

    @cached_property
    def names(self) -> list[str]:
        """The names of the arrays of flat graphs, in order."""
        return compact_format.names(self.schema)

    @cached_property
    def _known(self) -> set[str]:
        return {EDGE_INDEX, "num_nodes", TARGET, *(item.name for item in self.fields)}

    @cached_property
    def _counting(self) -> str | None:
        """The name of a node field, whose number of rows is the number of nodes."""
        return next((item.name for item in self.fields if item.level == "node"), None)

    @property
    def counts_nodes(self) -> bool:
        """Whether a field determines the number of nodes of a graph."""
        return self._counting is not None

    def warm(self) -> Reader:
        """Compiles the loops that read bodies, and returns the reader."""
        plain_graphs(b'{"graphs": [{"x": [[1], [2.5]]}]}')
        one = FlatGraphs.zeros(self.schema)
        counts = {"num_nodes": one.num_nodes, "num_edges": one.num_edges}
        checked({**counts, EDGE_INDEX: one.edge_index, **one.columns}, self.fields, self.categories)
        return self

    def json(self, body: bytes) -> FlatGraphs:
        """Reads ``{"graphs": [{"x": ..., "edge_index": ..., ...}]}`` or ``{"smiles": [...]}``.

        In UTF-8, UTF-16 or UTF-32, which its first bytes tell apart, with a byte order mark or not.

        Raises:
            BadBody: the body is neither.
        """
        values: Any = plain_graphs(body)
        if values is None:
            values = _python_json(body)
        if not isinstance(values, dict) or len(values) != 1 or not {"graphs", "smiles"} & {*values}:
            raise BadBody('the body must be {"graphs": [...]} or {"smiles": [...]}')
        (what, items), *_ = values.items()
        if not isinstance(items, list):
            raise BadBody(f"{what!r} must be a list")
        self._check_number(len(items))
        read = self._molecule if what == "smiles" else self._graph
        return self._together([read(item, number) for number, item in enumerate(items)])

    def npz(self, body: bytes) -> FlatGraphs:
        """Reads an npz, as ``numpy.savez`` writes it.

        Its arrays are ``num_nodes`` and ``num_edges`` ``[n]``, ``edge_index`` ``[2, sum e]``
        numbered within each graph, and one per field with the rows of all graphs.

        Raises:
            BadBody: the body is not such an npz.
        """
        arrays = arrays_of(body, self.most_bytes * MOST_INFLATED)
        if missing := {*self.names} - {*arrays}:
            raise BadBody(f"the npz lacks {', '.join(sorted(missing))}")
        for item in self.fields:
            if arrays[item.name].ndim > 1:
                arrays[item.name] = _rows_first(arrays[item.name], item)
        return self._flat(arrays, len(body))

    def compact(self, body: bytes) -> FlatGraphs:
        """Reads the output of :func:`staticgraph.serving.bodies.compact_format.encode`.

        Raises:
            BadBody: the body is not in this format.
        """
        try:
            arrays = compact_format.decode(body, self.names)
        except ValueError as error:
            raise BadBody(f"the body is no {compact_format.CONTENT_TYPE}: {error}", 400) from None
        return self._flat(arrays, len(body))

    def _flat(self, arrays: Arrays, nbytes: int) -> FlatGraphs:
        """Checks graphs that were sent as flat arrays."""
        counts = {}
        graphs = len(arrays["num_nodes"]) if arrays["num_nodes"].ndim else 0
        self._check_number(graphs)
        for name in ("num_nodes", "num_edges"):
            count = arrays[name]
            if count.shape != (graphs,) or count.dtype.kind not in "iu":
                raise BadBody(f"{name} must be whole numbers [n], alike for nodes and edges")
            if count.min() < 0 or int(count.max()) > nbytes * MOST_INFLATED:
                raise BadBody(f"{name} has numbers that cannot be")
            counts[name] = count.astype(np.int64)
        return checked({**arrays, **counts}, self.fields, self.categories)

    def _together(self, graphs: list[Arrays]) -> FlatGraphs:
        """Concatenates and checks graphs that were read one by one."""
        if len(graphs) == 1:
            arrays = graphs[0]
        else:
            arrays = {
                name: np.concatenate([each[name] for each in graphs], axis=int(name == EDGE_INDEX))
                for name in self.names
            }
        return checked(arrays, self.fields, self.categories)

    def _check_number(self, graphs: int) -> None:
        if not graphs:
            raise BadBody("no graph is in the request")
        if graphs > self.most_graphs:
            raise BadBody(
                f"{how_many(graphs, 'graph')}; a request has at most {self.most_graphs}", 413
            )

    def _molecule(self, smiles: object, number: int) -> Arrays:
        if not self.smiles:
            raise BadBody("this model was not trained on SMILES: send graphs")
        if not isinstance(smiles, str) or len(smiles) > LONGEST_SMILES:
            raise BadBody(f"SMILES {number} is no text of at most {LONGEST_SMILES} characters")
        try:
            atoms, edges, bonds = molecule_of(smiles)
        except (BadGraph, ValueError, UnicodeError) as error:
            raise BadBody(f"SMILES {number}: {error}") from None
        return self._graph({"x": atoms, EDGE_INDEX: edges, "edge_attr": bonds}, number)

    def _graph(self, values: object, number: int) -> Arrays:
        """One graph's arrays, with row counts that match its nodes and edges."""
        if not isinstance(values, dict):
            raise BadBody(f"graph {number} is no object with {self._named()}")
        if unknown := values.keys() - self._known:
            raise BadBody(f"graph {number} has {sorted(unknown)[0]!r}; known are {self._named()}")
        try:
            return self._arrays(values)
        except BadBody as error:
            raise BadBody(f"graph {number}: {error}", error.status) from None

    def _arrays(self, values: Mapping[str, Any]) -> Arrays:
        index = _array(values.get(EDGE_INDEX, [[], []]), EDGE_INDEX, "int64")
        if index.ndim != 2 or len(index) != 2:
            raise BadBody(
                f"edge_index has shape {list(index.shape)}, and it is [2, edges]: the edges' "
                "sources and their destinations, [[], []] where there are none"
            )
        made: Arrays = {EDGE_INDEX: index}
        for item in self.fields:
            if item.name not in values:
                raise BadBody(f"it lacks {item.name!r}, {item.describe()}")
            found = _array(values[item.name], item.name, item.dtype)
            made[item.name] = _rows_of(found, item)
        if self.edges and EDGE_INDEX not in values:
            raise BadBody("it lacks 'edge_index', [2, edges]; of a graph without edges, [[], []]")
        if self._counting is None and "num_nodes" not in values:
            raise BadBody("it lacks 'num_nodes', which no field tells: none has a row per node")
        nodes = values.get("num_nodes", len(made[self._counting]) if self._counting else 0)
        if not isinstance(nodes, int | np.integer) or isinstance(nodes, bool) or nodes < 0:
            raise BadBody("num_nodes must be a whole number")
        rows = {"node": int(nodes), "edge": index.shape[1]}
        for item in self.fields:
            expected = rows.get(item.level, item.rows)
            if len(made[item.name]) != expected:
                raise BadBody(
                    f"{item.name!r} has {how_many(len(made[item.name]), 'row')}, and the graph has "
                    f"{expected} ({item.describe()})"
                )
        if rows["node"] > self.most_bytes * MOST_INFLATED:
            raise BadBody("num_nodes is a number that cannot be")
        made["num_nodes"] = np.array([rows["node"]], np.int64)
        made["num_edges"] = np.array([rows["edge"]], np.int64)
        return made

    def _named(self) -> str:
        return ", ".join(["edge_index", *(f"{i.name} ({i.describe()})" for i in self.fields)])


def _python_json(body: bytes) -> Any:
    try:
        return json.loads(body, parse_constant=_no_number, object_pairs_hook=_each_once)
    except UnicodeDecodeError as error:
        raise BadBody(f"the body is no JSON in UTF-8, UTF-16 or UTF-32: {error}", 400) from None
    except (ValueError, RecursionError) as error:
        raise BadBody(f"the body is no JSON: {error}", 400) from None


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict; a duplicate key is an error, since one value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key in found if [name for name, _ in pairs].count(key) > 1)
        raise ValueError(f"{twice[:100]!r} stands in it twice")
    return found


def _rows_of(found: Array, item: Field) -> Array:
    """Converts one graph's field from PyG's layout to ``[rows, *shape]``.

    In PyG's layout, rows are in dimension ``__cat_dim__``, a field that PyG stacks has no row
    dimension, and a graph-level scalar may be a plain number.

    Raises:
        BadBody: the field has another shape.
    """
    shape = found.shape
    if not found.size and found.ndim <= 1:
        return found.reshape(0, *item.shape)
    whole = item.cat_dim is None or (item.level, item.rows, shape) == ("graph", 1, ())
    if whole and shape == item.shape:
        return found[None]
    found = _rows_first(found, item)
    if found.ndim != 1 + len(item.shape) or found.shape[1:] != item.shape:
        beside = f", side by side in dimension {item.cat_dim}" if item.cat_dim else ""
        raise BadBody(f"{item.name!r} has shape {list(shape)}, and it is {item.describe()}{beside}")
    return found


def _rows_first(found: Array, item: Field) -> Array:
    """The array with its rows, which PyG may have in another dimension, in the first dimension."""
    at = item.cat_dim
    return np.moveaxis(found, at, 0) if at and found.ndim > at else found


def _array(values: object, name: str, dtype: str) -> Array:
    """The values as an array of the given dtype, which must hold them."""
    try:
        found = np.asarray(values if (numbers := _only_numbers(values)) else None)
        if numbers and found.dtype.hasobject:  # beyond 64 bits, as JavaScript writes 1e20
            found = np.asarray(values, np.float64)
    except (ValueError, TypeError, OverflowError, RecursionError):
        found = np.asarray(None)
    if found.dtype == np.dtype(dtype):
        return found
    return cast(found, name, dtype)


def _only_numbers(values: object) -> bool:
    """Whether a value is a number, an array, or nested lists of numbers only.

    An array of strings would reserve the length of the longest one for each: gigabytes for a body
    of a few kilobytes."""
    if isinstance(values, list):
        kinds = {*map(type, values)}
        return kinds <= {bool, int, float} or (kinds == {list} and all(map(_only_numbers, values)))
    return isinstance(values, int | float | np.ndarray)
