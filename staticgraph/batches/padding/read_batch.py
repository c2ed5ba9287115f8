"""Reads the rows of a batch: of PyG's ``Batch``, of a list of graphs, of any other class.

PyG is used if it is loaded, and never imported: a batch of its classes can only come from a program
that did. What PyG's own rules (``__inc__``, ``__cat_dim__``) make of a field, and types of nodes,
are read by the reader of :class:`staticgraph.GraphStore`; the common case, plain fields, is
concatenated here, in less time than ``Batch.from_data_list`` takes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.batches.padding.batch_rows import (
    BatchRows,
    Rows,
    StoredRows,
    owners_of,
)
from staticgraph.errors import BadGraph
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import EDGE_INDEX, Schema, read_rows
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_columns import GraphColumns, StoredGraphs
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.objects import HostObjects
from staticgraph.text.how_many import how_many

_SINGLE = "a {0} is a single graph, and a batch has several: give a list, [data]"
_BY_HAND = (
    "a {0} that Batch.from_data_list did not make does not say which rows are of which graph: make "
    "it so, or name them, Padder(plan, schema=sg.Schema.of_batch(batch, node=..., edge=..., "
    "graph=..., index={{...}}))"
)
_BEFORE = "change the graphs before they are batched, or batch them again"
# Attributes of a ``Data`` that are no objects of a graph.
_STRUCTURE = frozenset({EDGE_INDEX, "num_nodes", "batch", "ptr"})


def is_graph(value: object) -> bool:
    """Whether a value is a ``Data`` or ``HeteroData``, or PyG's batch of them."""
    pyg = sys.modules.get("torch_geometric.data")
    return pyg is not None and isinstance(value, pyg.Data | pyg.HeteroData)


def is_pyg_batch(value: object) -> bool:
    """Whether a value is PyG's ``Batch``."""
    return is_graph(value) and hasattr(value, "_slice_dict")


def learn(batch: Any) -> Schema:
    """Returns the fields of PyG's graphs, in PyG's order of edges.

    Raises:
        TypeError: the batch is of another class, whose fields nobody said.
        BadGraph: the graphs do not have the same fields.
    """
    if isinstance(batch, StoredGraphs):
        return batch.store.schema
    if is_graph(batch) and not is_pyg_batch(batch):
        why = _BY_HAND if "batch" in batch else _SINGLE
        raise TypeError(why.format(type(batch).__name__))
    graphs = _examples(batch) if is_pyg_batch(batch) else batch
    if not (isinstance(graphs, Sequence) and len(graphs) and is_graph(graphs[0])):
        raise TypeError(
            f"which rows a {type(batch).__name__} has is not known: give Padder(plan, schema="
            "sg.Schema.of_batch(example, node=..., edge=..., graph=..., index={...}))"
        )
    return replace(stored(graphs, None).schema, keep_order=True)


def graphs_of(plan: BucketPlan) -> GraphColumns | None:
    """Returns the graphs a plan was made for, or a few of them; None if they are not PyG's or are
    gone."""
    source = plan.source()
    if isinstance(source, list) and is_graph(source[0]):
        return stored(source, plan.schema)
    return source if isinstance(source, GraphColumns) else None


def stored_batch(batch: Any, schema: Schema | None) -> GraphColumns:
    """Returns a list of PyG's graphs, or PyG's batch of them, as a store.

    Raises:
        TypeError: it is something else.
    """
    graphs = _examples(batch) if is_pyg_batch(batch) else batch
    if not (isinstance(graphs, list | tuple) and graphs and is_graph(graphs[0])):
        raise TypeError(
            f"a {type(batch).__name__} has no graphs to prepare with: give a GraphStore, a list of "
            "Data, PyG's Batch or a padded batch"
        )
    return stored(graphs, schema)


def stored(graphs: Any, schema: Schema | None) -> GraphColumns:
    """Returns PyG's graphs as a store.

    Raises:
        BadGraph: a graph lacks a field of the schema, a target included.
    """
    from staticgraph.store.pyg.flatten import from_pyg

    learned = schema is None
    return from_pyg(
        GraphStore, graphs, schema=schema, progress=False, labels=True, keep_order=learned
    )


def read(batch: Any, schema: Schema) -> Rows:
    """Returns the rows of a batch.

    Raises:
        BadGraph: a graph lacks a field, or its nodes are not grouped by graph.
        ValueError: the batch lacks a tensor.
    """
    if isinstance(batch, StoredGraphs):
        return StoredRows(batch)
    if isinstance(batch, list | tuple) and len(batch) and is_graph(batch[0]):
        stacks = any(field.cat_dim is None for field in schema)
        rows = None if stacks or _has_rules(schema) else _concatenated(batch, schema)
        return rows.sorted_by_destination() if rows else _all_of(stored(batch, schema))
    if is_pyg_batch(batch):
        unsorted = not schema.keep_order and _has_rules(schema)
        tensors = getattr(batch, "_store", {})  # PyG leaves arrays in a list
        joined = all(isinstance(tensors.get(field.name), Tensor) for field in schema)
        if schema.hetero or schema.two_sided or unsorted or "batch" not in batch or not joined:
            return _all_of(stored(split(batch), schema))
        return _collated(batch, schema).sorted_by_destination()
    return _declared(batch, schema)


def _examples(batch: Any) -> list[Any]:
    """Returns the graphs of PyG's ``Batch``, without what was added since it was made."""
    try:
        return batch.to_data_list()
    except RuntimeError:
        return split(batch)  # which names what has fewer rows


def split(batch: Any) -> list[Any]:
    """Returns the graphs of PyG's ``Batch``, which are where they were when it was made.

    Raises:
        BadGraph: a tensor has other rows since then, or its nodes are of other graphs.
    """
    types = (*batch.node_types, *batch.edge_types) if hasattr(batch, "node_types") else ()
    of_types = [batch._slice_dict.get(key, {}) for key in types]
    for store, slices in zip(batch.stores, (batch._slice_dict, *of_types), strict=True):
        for name, value in store.items():
            place, bounds = batch.__cat_dim__(name, value, store) or 0, slices.get(name)
            if not (isinstance(value, Tensor) and isinstance(bounds, Tensor) and value.dim()):
                continue
            if isinstance(place, int) and value.size(place) != int(bounds[-1]):
                raise BadGraph(
                    f"{name!r} has {how_many(value.size(place), 'row')}, and the graphs of the "
                    f"batch had {int(bounds[-1])} when it was made: {_BEFORE}"
                )
        owner, ptr = store.get("batch"), store.get("ptr")
        if isinstance(owner, Tensor) and isinstance(ptr, Tensor) and not _is_owner(owner, ptr):
            raise BadGraph(
                f"the nodes of the batch are of other graphs than it was made of: {_BEFORE}"
            )
    return batch.to_data_list()


def _is_owner(owner: Tensor, ptr: Tensor) -> bool:
    """Whether ``[n]``, the graph of each node, is what ``[g + 1]`` says, where each begins."""
    return np.array_equal(_on_host(owner).numpy(), owners_of(_on_host(ptr)))


def _all_of(store: GraphColumns) -> StoredRows:
    return StoredRows(StoredGraphs(store, np.arange(len(store))))


def _has_rules(schema: Schema) -> bool:
    """Whether filling takes more than concatenating fields along their first dimension."""
    return not schema.one_kind or any(field.is_index for field in schema) or bool(schema.axes)


def _concatenated(graphs: Sequence[Any], schema: Schema) -> BatchRows | None:
    """Returns the rows of graphs with plain fields; None if a graph lacks a field."""
    stores = [graph._store._mapping for graph in graphs]
    try:
        values = {
            field.name: _on_host(torch.cat([store[field.name] for store in stores]))
            for field in schema
        }
        pairs = [store[EDGE_INDEX] for store in stores]
    except (KeyError, TypeError, RuntimeError):  # missing, None, a scalar, or of two shapes
        return None
    of_nodes = [field.name for field in schema if field.level == "node"]
    if of_nodes:
        counts = [len(store[of_nodes[0]]) for store in stores]
    else:
        counts = [int(graph.num_nodes) for graph in graphs]
    ptr = np.zeros(len(graphs) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    edges = np.array([pair.shape[1] for pair in pairs])
    index = _on_host(torch.cat(pairs, dim=1)).numpy()
    if (index < 0).any() or (index >= np.repeat(counts, edges)).any():
        return None  # the store's reader names the graph
    values[EDGE_INDEX] = torch.from_numpy(index + np.repeat(ptr[:-1], edges))
    more = [name for name in stores[0] if name not in values and name not in _STRUCTURE]
    objects = HostObjects(
        {
            name: [store.get(name) for store in stores]
            for name in more
            if not tensors_in(stores[0][name])
        }
    )
    device = pairs[0].device
    return BatchRows(schema, values, ptr, {}, int(edges.sum()), objects, device)


def _collated(batch: Any, schema: Schema) -> BatchRows:
    """Returns the rows of PyG's ``Batch`` of one kind of nodes."""
    mapping = batch._store._mapping
    values = {field.name: _on_host(mapping[field.name]) for field in schema}
    # A model reads the former, which a user may have changed.
    owner, ptr = mapping["batch"], mapping.get("ptr")
    if ptr is None or not _is_owner(owner, ptr):
        ptr = _bounds(owner, int(batch.num_graphs))
    slices = {axis.name: _slices_of(batch, schema, axis.name) for axis in schema.axes}
    index = mapping.get(EDGE_INDEX)
    values[EDGE_INDEX] = torch.zeros(2, 0).long() if index is None else _on_host(index)
    objects = HostObjects(
        {
            name: value
            for name, value in mapping.items()
            if name not in (*values, *_STRUCTURE)
            and isinstance(value, list)
            and not tensors_in(value)
        }
    )
    return BatchRows(
        schema,
        values,
        np.asarray(_on_host(torch.as_tensor(ptr)), np.int64),
        {name: owners_of(bounds) for name, bounds in slices.items()},
        values[EDGE_INDEX].shape[1],
        objects,
        torch.as_tensor(ptr).device if index is None else index.device,
    )


def _slices_of(batch: Any, schema: Schema, level: str) -> Any:
    """Where the rows of an axis begin in each graph of PyG's ``Batch``."""
    for field in schema:
        if field.level == level and field.name in batch._slice_dict:
            return batch._slice_dict[field.name]
    raise BadGraph(f"the batch does not say which of its {level} rows are of which graph")


def _declared(batch: Any, schema: Schema) -> BatchRows:
    """Returns the rows of a batch of any class, by its schema's names."""
    names = dict(schema.names) or {
        name: name for name in (*(field.name for field in schema), EDGE_INDEX, "batch")
    }
    if is_graph(batch) and not schema.names and "batch" not in batch:
        raise TypeError(_SINGLE.format(type(batch).__name__))
    values: dict[str, Tensor] = {}
    device = torch.device("cpu")
    for path, array in names.items():
        value = torch.as_tensor(read_rows(batch, path, schema.dense))
        device = value.device
        values[array] = _on_host(value)
    owner, bounds = values.pop("batch", None), values.pop("ptr", None)
    graphs = next(
        (len(values[f.name]) // f.rows for f in schema if f.level == "graph" and not f.cat_dim),
        None,
    )
    if bounds is not None:
        ptr = bounds.numpy().astype(np.int64)
    elif owner is not None:
        ptr = _bounds(owner, graphs)
    else:
        ptr = np.array([0, _rows_at(schema, values, "node")])
    edge_index = values.get(EDGE_INDEX)
    if edge_index is None:
        edges = _rows_at(schema, values, "edge")
        values[EDGE_INDEX] = _ends(schema, values, edges)
    else:
        edges = edge_index.shape[1]
    owners: dict[str, IntArray] = {}
    of_edge = np.searchsorted(ptr, values[EDGE_INDEX][1].numpy(), "right") - 1
    known = {"node": owners_of(ptr), "edge": of_edge}
    for axis in schema.axes:
        axis_owner = values.pop(f"{axis.name}_batch", None)
        owners[axis.name] = (
            _owner(schema, values, axis.name, known) if axis_owner is None else axis_owner.numpy()
        )
        known[axis.name] = owners[axis.name]
    return BatchRows(schema, values, ptr, owners, edges, device=device)


def _rows_at(schema: Schema, values: Mapping[str, Tensor], level: str) -> int:
    """The number of rows of a level, by its first field."""
    for field in schema:
        if field.level == level:
            return values[field.name].shape[field.cat_dim or 0]
    return 0


def _ends(schema: Schema, values: Mapping[str, Tensor], edges: int) -> Tensor:
    """``[2, e]``: the nodes of each edge where a batch has them under other names."""
    ends = [
        values[name].movedim(schema[name].cat_dim or 0, 0).reshape(-1, schema[name].width)
        for name in schema.ends
    ]
    if not ends:
        return torch.zeros(2, edges, dtype=torch.int64)
    return torch.stack([ends[0][:, 0], ends[-1][:, -1]]).long()


def _owner(
    schema: Schema, values: Mapping[str, Tensor], level: str, known: Mapping[str, IntArray]
) -> IntArray:
    """The graph of each row of an axis, by an index that leads to rows whose graphs are known."""
    for field in schema:
        if field.level == level and field.counts and field.counts[0] in known:
            index = values[field.name].movedim(field.cat_dim or 0, 0).reshape(-1, field.width)
            return known[field.counts[0]].take(index[:, 0].numpy(), mode="clip")
    raise BadGraph(
        f"nothing says which graph the {level} rows are of: give an index from them to nodes, "
        'edges or graphs, index={"name": "graph"}'
    )


def _bounds(owner: Tensor, graphs: int | None) -> IntArray:
    """``[g + 1]``: where the nodes of each graph begin, by the graph of each node."""
    owner = _on_host(owner)
    if bool((owner.diff() < 0).any()):
        raise BadGraph(
            "the nodes of the batch are not grouped by graph, as the index of each node's graph "
            "falls: sort the nodes by it"
        )
    counts = torch.bincount(owner, minlength=graphs or 0)
    return np.concatenate([[0], counts.cumsum(0).numpy()])


def _on_host(value: Tensor) -> Tensor:
    return value.detach().cpu() if value.requires_grad or value.device.type != "cpu" else value
