"""Converts any sequence of PyG graphs to a store, with the reader for its type."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from staticgraph.errors import BadGraph
from staticgraph.schema import Axis, Level, Schema
from staticgraph.store.columns import names_of_fields
from staticgraph.store.graph_columns import GraphColumns, Kept
from staticgraph.store.pyg.homogeneous import PygReader
from staticgraph.store.pyg.levels import whole_count
from staticgraph.store.pyg.rules import Said
from staticgraph.store.random_states import kept_random_states
from staticgraph.text.byte_sizes import human_bytes
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import bar

# Below this number of graphs, no progress bar is shown.
PROGRESS_FROM = 5000


def from_pyg(
    kind: type[Kept],
    dataset: Any,
    *,
    schema: Schema | None = None,
    levels: Mapping[str, Level] | None = None,
    exclude: Iterable[str] = (),
    check_finite: bool | tuple[str, ...] = False,
    name: str | None = None,
    progress: bool = True,
    edges: bool = False,
    labels: bool = False,
    keep_order: bool = False,
) -> Kept:
    """Builds a ``kind`` of store from any PyG data set or sequence of graphs.

    Its arguments, and what it raises, are those of :meth:`staticgraph.GraphStore.from_pyg`; with
    ``edges``, a ``Data`` without ``edge_index`` is rejected, too, and with ``labels`` one without a
    ``y`` that the schema has.
    """
    name = name or type(dataset).__name__
    graphs, total = _one_by_one(dataset)
    transform = transform_of(dataset)
    if transform is not None:
        warn_of_frozen_draws(dataset, transform)
    reader: PygReader | None = None
    for number, data in enumerate(
        bar(
            graphs,
            desc=f"reading {name}",
            unit=" graphs",
            total=total,
            show=progress and (total or 0) >= PROGRESS_FROM,
        )
    ):
        _refuse_batch(number, data)
        if reader is None:
            typed = hasattr(data, "node_types") if schema is None else schema.hetero
            kind_of_reader = HeteroReader if typed else PygReader
            reader = kind_of_reader(name, names_of_fields(exclude), schema, levels or {})
            reader.needs_edges = edges
            reader.needs_labels |= labels
        reader.add(number, data)
    if reader is None:
        raise BadGraph(f"{name} is empty: a store needs at least one graph")
    store = reader.store(kind, check_finite)
    if keep_order if schema is None else schema.keep_order:
        store = store.in_first_order()
    if progress and schema is None:
        named = None if transform is None else type(transform).__name__
        print(summary_of(store, reader.dropped, named), file=sys.stderr)
    return store


def _refuse_batch(number: int, data: Any) -> None:
    """Rejects a PyG batch given as a graph, since it would be read as one large graph."""
    if not hasattr(data, "to_data_list"):
        return
    try:
        graphs = int(data.num_graphs)
    except ValueError:  # built by hand, without a number of graphs
        return
    if graphs != 1:
        raise BadGraph(
            f"item {number} is a {type(data).__name__} of {how_many(graphs, 'graph')}, which would "
            "be read as a single one: pass its graphs, batch.to_data_list(), and of a DataLoader "
            "its data set, loader.dataset"
        )


def _one_by_one(dataset: Any) -> tuple[Iterable[Any], int | None]:
    """Returns the graphs in order, and their number if known.

    An object with a length and indexing is read by index, as PyG's data sets are meant to be.
    """
    if refusal := _refusal_of(dataset):
        raise BadGraph(refusal)
    if _by_index(dataset):
        return (dataset[number] for number in range(len(dataset))), len(dataset)
    return dataset, len(dataset) if hasattr(dataset, "__len__") else None


def _by_index(dataset: Any) -> bool:
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def _refusal_of(dataset: Any) -> str:
    """Returns why something is no data set, and what to pass instead; empty if it may be one."""
    kind = f"a {type(dataset).__name__}"
    if isinstance(dataset, str | Path):
        return (
            f"{str(dataset)!r} is a name, not a data set: sg.datasets.open(...) opens it, or pass "
            "a list of torch_geometric.data.Data"
        )
    if isinstance(dataset, Batch):
        return (
            f"{kind} is not a list of graphs: pass batch.to_data_list(), or the data set that it "
            "is of"
        )
    if isinstance(dataset, DataLoader):
        return f"{kind} gives batches, not graphs: pass its graphs, loader.dataset"
    if hasattr(dataset, "to_dict") and hasattr(dataset, "num_nodes"):
        return f"{kind} is a single graph: pass a list, [data]"
    if isinstance(dataset, Mapping):
        return f"{kind} is not a data set: pass a list of its graphs, [*graphs.values()]"
    if not hasattr(dataset, "__iter__") and not _by_index(dataset):
        return (
            f"{kind} is not a data set: pass a list of torch_geometric.data.Data, or anything that "
            "gives them one by one"
        )
    return ""


def summary_of(store: GraphColumns, dropped: Mapping[str, str], frozen: str | None) -> str:
    """Returns ``name: 3 graphs, 1.2 MiB: x float32 [9] per node, ...; dropped: ...``, with why each
    attribute was dropped, and the transform that was applied once."""
    fields = ", ".join(f"{field.name} {field.describe()}" for field in store.schema)
    parts = [
        f"{how_many(len(store), 'graph')}, {human_bytes(store.nbytes)}: {fields or 'no field'}"
    ]
    if store.objects:
        parts.append(f"on the host: {', '.join(store.objects)}")
    if dropped:
        parts.append("dropped: " + ", ".join(f"{name} ({why})" for name, why in dropped.items()))
    if frozen:
        parts.append(f"applied once: {frozen}")
    return f"{store.name}: {'; '.join(parts)}"


def transform_of(dataset: Any) -> Any:
    """Returns the transform of a data set, or of the one that it is a subset of; or None."""
    for _ in range(8):
        if (transform := getattr(dataset, "transform", None)) is not None:
            return transform
        dataset = getattr(dataset, "dataset", None)
    return None


def warn_of_frozen_draws(dataset: Any, transform: Any) -> None:
    """Warns if a data set's transform is random, since a store keeps one draw of it for good.

    It is if two reads of the first graph differ. The random states are restored.
    """
    try:
        with kept_random_states():
            first, second = (dict(dataset[0].to_dict()) for _ in range(2))
    except Exception:  # no first graph: reading the data set will raise the proper error
        return
    drawn = [name for name in first if not _equal(first[name], second.get(name))]
    if drawn:
        name = getattr(transform, "__name__", None) or repr(transform).split("\n")[0]
        warnings.warn(
            f"the data set's transform {name} draws {', '.join(drawn)} again each time "
            "a graph is read; the store keeps one draw. For a new one every epoch take it off the "
            "data set and pass StaticLoader(transform=...), which runs on each batch",
            stacklevel=4,
        )


def _equal(first: Any, other: Any) -> bool:
    if not (isinstance(first, Tensor) and isinstance(other, Tensor)):
        return isinstance(first, Tensor) is isinstance(other, Tensor)
    return first.shape == other.shape and torch.equal(
        torch.nan_to_num(first), torch.nan_to_num(other)
    )


class HeteroReader(PygReader):
    """Collects the tensors of every ``HeteroData`` under the names of their types: ``atom.x``,
    ``atom__bond__atom.edge_attr``.

    Each node and edge type is an axis of the data set, with its own rows, padding and mask; all
    types share one slot. A type's ``edge_index`` is an index field whose two rows refer to the
    nodes of its two end types. The types are those of the first graph (or of a schema); a graph
    that lacks a type has no rows of it.
    """

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
