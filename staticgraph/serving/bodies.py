"""The body of a request -> graphs, or one line that says what is wrong with it.

Whoever can reach the port can send anything. So nothing here is unpickled, no size that a body
claims is believed before it was compared with the bytes that are there, and what a model would
stumble over (a category that it has no row for, a number that is not finite) is refused with its
name, before it can fail the batch of others.
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
from staticgraph.serving import compact
from staticgraph.serving.bad_body import BadBody
from staticgraph.serving.checked_graphs import cast, checked
from staticgraph.serving.flat_graphs import TARGET, FlatGraphs, fields_of
from staticgraph.serving.npz import arrays_of
from staticgraph.serving.plain_json import plain_graphs
from staticgraph.store.columns import Array
from staticgraph.text.how_many import how_many

# Of a SMILES, in characters; the longest of ogbg-molhiv has 529.
LONGEST_SMILES = 4000
# How far an npz may unfold, apart from the limit on the body; and how many rows a byte may claim.
MOST_INFLATED = 8

Arrays = dict[str, Array]


@dataclass(frozen=True)
class Reader:
    """Reads bodies for one model.

    Attributes:
        schema: the fields of a graph; a target is not asked for.
        categories: integer field -> how many categories each of its columns has.
        smiles: whether molecules may be given as SMILES.
        most_graphs: in one request.
        most_bytes: of a body.
    """

    schema: Schema
    categories: Mapping[str, tuple[int, ...]]
    smiles: bool
    most_graphs: int
    most_bytes: int

    @cached_property
    def fields(self) -> list[Field]:
        """What a graph must have in addition to its edges."""
        return fields_of(self.schema)

    @cached_property
    def names(self) -> list[str]:
        """Of the arrays of flat graphs, in their order."""
        return compact.names(self.schema)

    @cached_property
    def _known(self) -> set[str]:
        return {EDGE_INDEX, "num_nodes", TARGET, *(item.name for item in self.fields)}

    @cached_property
    def _counting(self) -> str | None:
        """The field of nodes whose rows tell how many there are."""
        return next((item.name for item in self.fields if item.level == "node"), None)

    def warm(self) -> Reader:
        """Itself, once the loops that read bodies are compiled."""
        plain_graphs(b'{"graphs": [{"x": [[1], [2.5]]}]}')
        one = FlatGraphs.zeros(self.schema)
        counts = {"num_nodes": one.num_nodes, "num_edges": one.num_edges}
        checked({**counts, EDGE_INDEX: one.edge_index, **one.columns}, self.fields, self.categories)
        return self

    def json(self, body: bytes) -> FlatGraphs:
        """``{"graphs": [{"x": ..., "edge_index": ..., ...}]}`` or ``{"smiles": [...]}``.

        Raises:
            BadBody: it is neither.
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
        """What ``numpy.savez`` writes: ``num_nodes`` and ``num_edges`` ``[n]``, ``edge_index``
        ``[2, sum e]`` numbered within each graph, and the fields, rows of all graphs in one array.

        Raises:
            BadBody: it is not.
        """
        arrays = arrays_of(body, self.most_bytes * MOST_INFLATED)
        if missing := {*self.names} - {*arrays}:
            raise BadBody(f"the npz lacks {', '.join(sorted(missing))}")
        return self._flat(arrays, len(body))

    def compact(self, body: bytes) -> FlatGraphs:
        """What :func:`staticgraph.serving.compact.encode` gives.

        Raises:
            BadBody: it is not.
        """
        try:
            arrays = compact.decode(body, self.names)
        except ValueError as error:
            raise BadBody(f"the body is no {compact.CONTENT_TYPE}: {error}", 400) from None
        return self._flat(arrays, len(body))

    def molecule(self, smiles: object) -> FlatGraphs:
        """The graph of a SMILES.

        Raises:
            BadBody: it is none, or the model was not trained on molecules.
        """
        return self._together([self._molecule(smiles, 0)])

    def _flat(self, arrays: Arrays, nbytes: int) -> FlatGraphs:
        """Graphs whose arrays came flat."""
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
        """Graphs that were read one by one."""
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
        """One graph's arrays, with as many rows as it has nodes and edges."""
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
            raise BadBody("edge_index must be [2, edges]")
        made: Arrays = {EDGE_INDEX: index}
        for item in self.fields:
            if item.name not in values:
                raise BadBody(f"it lacks {item.name!r}, {item.describe()}")
            found = _array(values[item.name], item.name, item.dtype)
            if not found.size and found.ndim <= 1:
                found = found.reshape(0, *item.shape)
            if found.ndim != 1 + len(item.shape) or found.shape[1:] != item.shape:
                raise BadBody(
                    f"{item.name!r} has shape {list(found.shape)}, and it is {item.describe()}"
                )
            made[item.name] = found
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
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadBody(f"the body is no JSON: {error}", 400) from None


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _array(values: object, name: str, dtype: str) -> Array:
    """Numbers, in a dtype that holds them."""
    try:
        found = np.asarray(values if _only_numbers(values) else None)
    except (ValueError, TypeError, OverflowError, RecursionError):
        found = np.asarray(None)
    if found.dtype == np.dtype(dtype):
        return found
    return cast(found, name, dtype)


def _only_numbers(values: object) -> bool:
    """Whether there are numbers in it, and lists of lists of them. An array of texts would have the
    longest one's room for each: gigabytes, of a body of some kilobytes."""
    if isinstance(values, list):
        kinds = {*map(type, values)}
        return kinds <= {bool, int, float} or (kinds == {list} and all(map(_only_numbers, values)))
    return isinstance(values, int | float | np.ndarray)
