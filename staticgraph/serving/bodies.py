"""The body of a request -> graphs, or one line that says what is wrong with it.

Whoever can reach the port can send anything. So nothing here is unpickled, no size that a body
claims is believed before it was compared with the bytes that are there, and what a model would
stumble over (a category that it has no row for, a number that is not finite) is refused with its
name, before it can fail the batch of others.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch_geometric.data import Data

from staticgraph.datasets.smiles import molecule_of
from staticgraph.errors import BadGraph
from staticgraph.schema import EDGE_INDEX, Field, Schema
from staticgraph.store.columns import Array

# Of a SMILES, in characters; the longest of ogbg-molhiv has 529.
LONGEST_SMILES = 4000
# How far an npz may unfold, beside the limit on the body.
MOST_INFLATED = 8
TARGET = "y"


class BadBody(ValueError):
    """A body that is none of what is understood.

    Attributes:
        status: 400 where it cannot be read, 413 where it is too large, 422 where it can be and says
            what no model takes.
    """

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message.splitlines()[0][:500] if message else "no message")
        self.status = status


@dataclass(frozen=True, slots=True)
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

    @property
    def fields(self) -> list[Field]:
        """What a graph must have beside its edges."""
        return [item for item in self.schema if item.name != TARGET]

    def json(self, body: bytes) -> list[Data]:
        """``{"graphs": [{"x": ..., "edge_index": ..., ...}]}`` or ``{"smiles": [...]}``.

        Raises:
            BadBody: it is neither.
        """
        try:
            values = json.loads(body, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise BadBody(f"the body is no JSON: {error}", 400) from None
        if not isinstance(values, dict) or len(values) != 1 or not {"graphs", "smiles"} & {*values}:
            raise BadBody('the body must be {"graphs": [...]} or {"smiles": [...]}')
        (what, items), *_ = values.items()
        if not isinstance(items, list):
            raise BadBody(f"{what!r} must be a list")
        self._check_number(len(items))
        if what == "smiles":
            return [self.molecule(item, number) for number, item in enumerate(items)]
        return [self._graph(item, number) for number, item in enumerate(items)]

    def npz(self, body: bytes) -> list[Data]:
        """What ``numpy.savez`` writes: ``num_nodes`` and ``num_edges`` ``[n]``, ``edge_index``
        ``[2, sum e]`` numbered within each graph, and the fields, rows of all graphs in one array.

        Raises:
            BadBody: it is not.
        """
        arrays = _arrays(body, self.most_bytes * MOST_INFLATED)
        names = {"num_nodes", "num_edges", EDGE_INDEX, *(item.name for item in self.fields)}
        if missing := names - {*arrays}:
            raise BadBody(f"the npz lacks {', '.join(sorted(missing))}")
        counts = {level: arrays[f"num_{level}s"] for level in ("node", "edge")}
        graphs = len(counts["node"]) if counts["node"].ndim else 0
        self._check_number(graphs)
        for level, count in counts.items():
            if count.shape != (graphs,) or count.dtype.kind not in "iu":
                raise BadBody(f"num_{level}s must be whole numbers [n], alike for nodes and edges")
            if graphs and (count.min() < 0 or int(count.max()) > len(body) * MOST_INFLATED):
                raise BadBody(f"num_{level}s has numbers that cannot be")
        bounds = {k: np.concatenate([[0], np.cumsum(v, dtype=np.int64)]) for k, v in counts.items()}
        bounds["graph"] = np.arange(graphs + 1)
        index = arrays[EDGE_INDEX]
        if index.shape != (2, bounds["edge"][-1]):
            raise BadBody(f"edge_index has shape {list(index.shape)}, not [2, sum of num_edges]")
        for item in self.fields:
            rows = int(bounds[item.level][-1]) * item.rows
            if arrays[item.name].shape[:1] != (rows,):
                raise BadBody(f"{item.name!r} has not {rows} rows, one a {item.level}")
        found = []
        for number in range(graphs):
            nodes, edges = (slice(*bounds[k][number : number + 2]) for k in ("node", "edge"))
            values: dict[str, Any] = {EDGE_INDEX: index[:, edges]}
            for item in self.fields:
                first, last = bounds[item.level][number : number + 2] * item.rows
                values[item.name] = arrays[item.name][first:last]
            found.append(self._graph({"num_nodes": nodes.stop - nodes.start, **values}, number))
        return found

    def molecule(self, smiles: object, number: int = 0) -> Data:
        """The graph of a SMILES.

        Raises:
            BadBody: it is none, or the model was not trained on molecules.
        """
        if not self.smiles:
            raise BadBody("this model was not trained on SMILES: send graphs")
        if not isinstance(smiles, str) or len(smiles) > LONGEST_SMILES:
            raise BadBody(f"SMILES {number} is no text of at most {LONGEST_SMILES} characters")
        try:
            atoms, edges, bonds = molecule_of(smiles)
        except (BadGraph, ValueError, UnicodeError) as error:
            raise BadBody(f"SMILES {number}: {error}") from None
        return self._graph({"x": atoms, EDGE_INDEX: edges, "edge_attr": bonds}, number)

    def _check_number(self, graphs: int) -> None:
        if not graphs:
            raise BadBody("no graph is in the request")
        if graphs > self.most_graphs:
            raise BadBody(f"{graphs} graphs; a request has at most {self.most_graphs}", 413)

    def _graph(self, values: object, number: int) -> Data:
        if not isinstance(values, dict):
            raise BadBody(f"graph {number} is no object with {self._named()}")
        known = {EDGE_INDEX, "num_nodes", TARGET, *(item.name for item in self.fields)}
        if unknown := {*values} - known:
            raise BadBody(f"graph {number} has {sorted(unknown)[0]!r}; known are {self._named()}")
        index = _array(values.get(EDGE_INDEX, [[], []]), EDGE_INDEX, number, "int64")
        if index.ndim != 2 or len(index) != 2:
            raise BadBody(f"graph {number}: edge_index must be [2, edges]")
        made: dict[str, Any] = {EDGE_INDEX: index}
        for item in self.fields:
            if item.name not in values:
                raise BadBody(f"graph {number} lacks {item.name!r}, {item.describe()}")
            found = _array(values[item.name], item.name, number, item.dtype)
            if not found.size and found.ndim <= 1:
                found = found.reshape(0, *item.shape)
            if found.ndim != 1 + len(item.shape) or found.shape[1:] != item.shape:
                raise BadBody(
                    f"graph {number}: {item.name!r} has shape {list(found.shape)}, and it is "
                    f"{item.describe()}"
                )
            self._check_categories(item.name, found, number)
            made[item.name] = found
        nodes = values.get("num_nodes", self._nodes(made))
        if not isinstance(nodes, int | np.integer) or isinstance(nodes, bool) or nodes < 0:
            raise BadBody(f"graph {number}: num_nodes must be a whole number")
        if index.size and (index.min() < 0 or index.max() >= nodes):
            raise BadBody(f"graph {number}: edge_index leads to a node outside of 0 to {nodes - 1}")
        tensors = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in made.items()}
        for item in self.fields:
            rows = {"node": int(nodes), "edge": index.shape[1], "graph": item.rows}
            if len(tensors[item.name]) != rows[item.level]:
                raise BadBody(
                    f"graph {number}: {item.name!r} has {len(tensors[item.name])} rows, and the "
                    f"graph has {rows[item.level]} ({item.describe()})"
                )
        return Data(**tensors, num_nodes=int(nodes))

    def _nodes(self, made: Mapping[str, Array]) -> int:
        """As many as rows of the first field of nodes."""
        named = [item.name for item in self.fields if item.level == "node"]
        return len(made[named[0]]) if named else 0

    def _check_categories(self, name: str, found: Array, number: int) -> None:
        sizes = self.categories.get(name)
        if sizes is None or not found.size:
            return
        columns = found.reshape(len(found), len(sizes))
        wrong = (columns < 0) | (columns >= np.array(sizes))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise BadBody(
                f"graph {number}: {name!r} has {columns[row, column]} in column {column} of row "
                f"{row}; the model was trained with 0 to {sizes[column] - 1} there"
            )

    def _named(self) -> str:
        return ", ".join(["edge_index", *(f"{i.name} ({i.describe()})" for i in self.fields)])


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _array(values: object, name: str, number: int, dtype: str) -> Array:
    """Numbers in a dtype that holds them: no text, no fraction in whole numbers, nothing that is
    not finite."""
    try:
        found = np.asarray(values)
    except (ValueError, TypeError, OverflowError, RecursionError):
        found = np.asarray(None)
    if found.dtype.kind not in "biuf":
        raise BadBody(f"graph {number}: {name!r} is no array of numbers with rows alike")
    wanted = np.dtype(dtype)
    with np.errstate(all="ignore"):
        made = found.astype(wanted)
        exact = wanted.kind == "f" or not found.size or np.array_equal(made, found)
    if not exact or (wanted.kind == "f" and not np.isfinite(made).all()):
        raise BadBody(f"graph {number}: {name!r} has a value that is no {dtype}, or not finite")
    return made


def _arrays(body: bytes, most_bytes: int) -> dict[str, Array]:
    """The arrays of an npz, each read by its own header, which must agree with its bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            inflated = sum(max(0, entry.file_size) for entry in archive.infolist())
            if inflated > most_bytes:
                raise BadBody(f"the npz unfolds to {inflated} bytes, more than {most_bytes}", 413)
            entries = {e.filename.removesuffix(".npy"): archive.read(e) for e in archive.infolist()}
    except BadBody:
        raise
    except Exception as error:  # zipfile raises whatever the bytes happen to lead to
        raise BadBody(f"the body is no npz ({type(error).__name__}: {error})", 400) from None
    return {name: _npy(name, content) for name, content in entries.items()}


def _npy(name: str, content: bytes) -> Array:
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}
        read[2, 0] = np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read[version](file)
        if dtype.kind not in "biuf" or min(shape, default=0) < 0 or dtype.hasobject:
            raise ValueError(f"{dtype} of shape {shape}")
        if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise ValueError(f"shape {shape} is not that of its bytes")
        flat = np.frombuffer(content, dtype, offset=file.tell())
        return flat.reshape(shape, order="F" if by_column else "C")
    except Exception as error:  # the header is read as a Python literal
        raise BadBody(f"array {name!r} cannot be read ({type(error).__name__})", 400) from None
