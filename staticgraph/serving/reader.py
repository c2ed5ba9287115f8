"""The body of a request -> graphs, or a one-line error.

Anyone who can reach the port can send anything. So nothing here is unpickled, JSON is read into the
types that the model's fields have (``msgspec``: an error names the path of the value), arrays are
read by ``safetensors``, which checks every declared size against the actual bytes, and a value that
the model cannot handle (a category without an embedding row, a number that is not finite) is
refused before it can fail a batch with other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from safetensors.numpy import load

from staticgraph.datasets.smiles import molecule_of
from staticgraph.schema import EDGE_INDEX, Field, Schema
from staticgraph.serving.checked_graphs import (
    TARGET,
    Arrays,
    BadBody,
    Categories,
    checked,
    fields_of,
    joined,
)
from staticgraph.store.columns import Array
from staticgraph.text.how_many import how_many

# The most characters of a SMILES; the longest of ogbg-molhiv has 529.
LONGEST_SMILES = 4000
# A body may declare this many rows per byte of the limit.
MOST_ROWS = 8


@dataclass(frozen=True)
class Reader:
    """Reads bodies for one model.

    Attributes:
        schema: the fields of a graph; a target is not required.
        categories: integer field -> the number of categories of each of its columns.
        smiles: whether molecules may be given as SMILES.
        most_graphs, most_bytes: the most graphs, and bytes, of one request.
        edges: whether a graph must give its edges, even if it has none; False for a model that was
            trained on graphs without edges.
    """

    schema: Schema
    categories: Categories
    smiles: bool
    most_graphs: int
    most_bytes: int
    edges: bool = True

    @cached_property
    def fields(self) -> list[Field]:
        """The fields that a graph must have in addition to its edges."""
        return fields_of(self.schema)

    @cached_property
    def body(self) -> type[msgspec.Struct]:
        """The type of a JSON body: ``{"graphs": [{...}, ...]}`` or ``{"smiles": [...]}``."""
        ends, counted = tuple[list[int], list[int]], any(f.level == "node" for f in self.fields)
        members: list[Any] = [
            *((f"field{k}", _type_of(item)) for k, item in enumerate(self.fields)),
            ("edge_index", ends) if self.edges else ("edge_index", ends, ([], [])),
            ("num_nodes", int | None, None) if counted else ("num_nodes", int),
            ("target", Any, None),
        ]
        names = {f"field{k}": item.name for k, item in enumerate(self.fields)}
        graph = msgspec.defstruct(
            "Graph", members, rename={**names, "target": TARGET}, forbid_unknown_fields=True,
            kw_only=True, gc=False,
        )  # fmt: skip
        kinds = {"graphs": list[graph], "smiles": list[str]}
        members = [(name, kind | UnsetType, UNSET) for name, kind in kinds.items()]
        return msgspec.defstruct("Body", members, forbid_unknown_fields=True)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self.body)

    def json(self, body: bytes) -> Arrays:
        """Reads ``{"graphs": [{"x": ..., "edge_index": ..., ...}]}`` or ``{"smiles": [...]}``.

        Raises:
            BadBody: the body is neither.
        """
        try:
            values = self._decoder.decode(body)
        except (msgspec.ValidationError, RecursionError) as error:
            raise BadBody(f"the body is not of this model's form: {error}") from None
        except ValueError as error:
            raise BadBody(f"the body is no JSON in UTF-8: {error}", 400) from None
        if (values.graphs is UNSET) == (values.smiles is UNSET):
            raise BadBody('the body must be {"graphs": [...]} or {"smiles": [...]}')
        if values.smiles is UNSET:
            kind, items, read = "graph", values.graphs, self._graph
        elif self.smiles:
            kind, items, read = "SMILES", values.smiles, _molecule
        else:
            raise BadBody("this model was not trained on SMILES: send graphs")
        self._check_number(items)
        graphs: list[Arrays] = []
        for number, item in enumerate(items):
            try:
                graphs.append(read(item))
            except ValueError as error:
                raise BadBody(f"{kind} {number}: {error}") from None
        return checked(joined(graphs), self.fields, self.categories)

    def arrays(self, body: bytes) -> Arrays:
        """Reads the arrays of graphs that ``safetensors.numpy.save`` writes, in any dtype that
        holds the numbers.

        Raises:
            BadBody: the body is not of this form.
        """
        try:
            arrays = load(body)
        except Exception as error:  # its own error, and KeyError for a dtype that NumPy lacks
            raise BadBody(f"the body is no safetensors: {error}", 400) from None
        names = {"num_nodes", "num_edges", EDGE_INDEX, *(item.name for item in self.fields)}
        if missing := names - {*arrays}:
            raise BadBody(f"the safetensors lack {', '.join(sorted(missing))}")
        for name in ("num_nodes", "num_edges"):
            count = arrays[name]
            if count.shape != (arrays["num_nodes"].size,) or count.dtype.kind not in "iu":
                raise BadBody(
                    f"{name} has shape {list(count.shape)} and dtype {count.dtype}: num_nodes and "
                    "num_edges must be whole numbers [n], one per graph"
                )
            self._check_number(count)
            if (wrong := (count < 0) | (count > len(body) * MOST_ROWS)).any():
                graph = int(wrong.argmax())
                raise BadBody(f"graph {graph}: {name} is {count[graph]}, which cannot be")
            arrays[name] = count.astype(np.int64)
        for item in self.fields:
            arrays[item.name] = _rows_first(arrays[item.name], item)
        return checked(arrays, self.fields, self.categories)

    def _check_number(self, graphs: Sequence[Any] | Array) -> None:
        if not len(graphs):
            raise BadBody("no graph is in the request")
        if len(graphs) > self.most_graphs:
            raise BadBody(
                f"{how_many(len(graphs), 'graph')}; a request has at most {self.most_graphs}", 413
            )

    def _graph(self, graph: Any) -> Arrays:
        """One graph's arrays, with row counts that match its nodes and edges."""
        index = _array(graph.edge_index, EDGE_INDEX, "int64").reshape(2, -1)
        arrays = {
            item.name: _rows_of(_array(getattr(graph, f"field{k}"), item.name, item.dtype), item)
            for k, item in enumerate(self.fields)
        }
        nodes = graph.num_nodes
        if nodes is None:
            nodes = next(len(arrays[item.name]) for item in self.fields if item.level == "node")
        if not 0 <= nodes <= self.most_bytes * MOST_ROWS:
            raise BadBody(f"num_nodes is {nodes}, which cannot be")
        rows = {"node": nodes, "edge": index.shape[1]}
        for item in self.fields:
            expected = rows.get(item.level, item.rows)
            if len(arrays[item.name]) != expected:
                raise BadBody(
                    f"{item.name!r} has {how_many(len(arrays[item.name]), 'row')}, and the graph "
                    f"has {expected} ({item.describe()})"
                )
        counts = {f"num_{level}s": np.array([count], np.int64) for level, count in rows.items()}
        return {**counts, EDGE_INDEX: index, **arrays}


def _molecule(smiles: str) -> Arrays:
    if len(smiles) > LONGEST_SMILES:
        raise BadBody(f"it has more than {LONGEST_SMILES} characters")
    atoms, edges, bonds = molecule_of(smiles)
    counts = {"num_nodes": np.array([len(atoms)]), "num_edges": np.array([len(bonds)])}
    return {**counts, EDGE_INDEX: edges, "x": atoms, "edge_attr": bonds}


def _type_of(item: Field) -> Any:
    """The type of a field's values in JSON: lists of numbers as deep as its tensor in PyG."""
    number: Any = {"f": float, "b": bool | int}.get(np.dtype(item.dtype).kind, int)
    depth = len(item.shape) + (item.cat_dim is not None)
    lists = reduce(lambda inner, _: list[inner], range(depth), number)
    return lists | number if (item.level, item.rows, item.shape) == ("graph", 1, ()) else lists


def _array(values: Any, name: str, dtype: str) -> Array:
    """The values as an array of the widest dtype of their kind."""
    kind = np.dtype(dtype).kind
    try:
        return np.array(values, {"f": "float64", "u": "uint64"}.get(kind, "int64"))
    except (ValueError, OverflowError):
        raise BadBody(f"{name!r} is no array of numbers with rows alike") from None


def _rows_of(array: Array, item: Field) -> Array:
    """Converts one graph's field from PyG's layout to ``[rows, *shape]``. There, rows are in
    dimension ``__cat_dim__``, a field that PyG stacks has no row dimension, and a graph-level
    scalar may be a plain number."""
    shape = array.shape
    if not array.size and array.ndim <= 1:
        return array.reshape(0, *item.shape)
    whole = item.cat_dim is None or (item.level, item.rows, shape) == ("graph", 1, ())
    if whole and shape == item.shape:
        return array[None]
    array = _rows_first(array, item)
    if array.ndim != 1 + len(item.shape) or array.shape[1:] != item.shape:
        where = f", next to each other in dimension {item.cat_dim}" if item.cat_dim else ""
        raise BadBody(f"{item.name!r} has shape {list(shape)}, and it is {item.describe()}{where}")
    return array


def _rows_first(array: Array, item: Field) -> Array:
    """The array with its rows, which PyG may have in another dimension, in the first dimension."""
    place = item.cat_dim
    return np.moveaxis(array, place, 0) if place and array.ndim > place else array
