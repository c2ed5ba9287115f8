"""Outputs of padded batches, split per graph and returned in the order of the input.

A batch is split into its graphs as PyG has them: without padding, indices relative to each graph;
the inverse of :mod:`staticgraph.batches.collation.collate`. Edges stay sorted by destination.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import BatchArrays
from staticgraph.batches.batch.containers import parts_of, with_parts
from staticgraph.schema import EDGE_INDEX, Field, Level
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.indices import counted
from staticgraph.store.record import graph_in


def starts(batch: BatchArrays, level: str) -> Tensor:
    """``[g + 1]`` int64 on the CPU: where the rows of each real graph begin and end."""
    tensors, graphs = batch.tensors(), batch.real_counts.graphs
    if level == "graph":
        return torch.arange(graphs + 1)
    if level == "edge":
        return _grouped(batch, owners(batch, level))
    name = "ptr" if level == "node" else f"{level}_ptr"
    return tensors[name][: graphs + 1].cpu()


def owners(batch: BatchArrays, level: str) -> Tensor:
    """``[rows]`` int64 on the CPU: the graph of each real row of edges or an axis."""
    tensors, rows = batch.tensors(), batch.real_counts.of(level)
    if level != "edge":
        return tensors[f"{level}_batch"][:rows].cpu()
    schema = batch.layout.schema
    ends = schema[EDGE_INDEX].counts[1] if schema.two_sided else "node"
    of_node = tensors["batch" if ends == "node" else f"{ends}_batch"]
    return of_node[tensors[EDGE_INDEX][1, :rows]].cpu()


def _grouped(batch: BatchArrays, owner: Tensor) -> Tensor:
    """``[g + 1]``: where the rows of each real graph begin, once they are grouped by graph."""
    counts = torch.bincount(owner, minlength=batch.real_counts.graphs)
    return torch.cat([torch.zeros(1), counts.cumsum(0)]).long()


def unpadded(batch: BatchArrays, value: Any, name: str = "") -> Any:
    """Returns one tensor per real graph; see :meth:`staticgraph.StaticBatch.unpad`.

    Raises:
        ValueError: a tensor has no rows of the batch; the message names it.
    """
    inside = f"{name}." if name else ""
    if (parts := parts_of(value)) is not None:
        return with_parts(value, [unpadded(batch, item, f"{inside}{key}") for key, item in parts])
    if not isinstance(value, Tensor) or (name and not value.dim()):
        return value
    try:
        level = batch.level_of(value)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}" if name else str(error)) from None
    graphs = batch.real_counts.graphs
    if level == "graph":
        cut = list(value[:graphs].unbind())
        if is_dense(batch, value):
            nodes = starts(batch, "node").diff().tolist()
            return [piece[:count] for piece, count in zip(cut, nodes, strict=True)]
        return cut
    if level != "node":
        owner = owners(batch, level)
        if bool((owner.diff() < 0).any()):  # a batch of the user's own, of rows in any order
            rows = value[: len(owner)][owner.argsort(stable=True).to(value.device)]
            return list(rows.split(_grouped(batch, owner).diff().tolist()))
    bounds = starts(batch, level)
    return list(value[: int(bounds[-1])].split(bounds.diff().tolist()))


def is_dense(batch: BatchArrays, value: Tensor) -> bool:
    """Whether a tensor has a row per place of a node, ``[G, M, ...]``, in a batch of such."""
    laid_out = batch.layout.schema.dense
    most = batch.layout.capacity.max_graph_nodes
    return bool(laid_out) and value.dim() > 1 and value.shape[1] == most


def pieces(batch: BatchArrays, field: Field) -> list[Tensor]:
    """Cuts a field into one tensor per real graph; indices become relative to the graph."""
    value = batch.tensors()[field.name]
    dim = field.cat_dim or 0
    rows = value.movedim(dim, 0)
    bounds = starts(batch, field.level) * field.rows
    cut = list(rows[: int(bounds[-1])].split(bounds.diff().tolist()))
    if field.counts:
        before = {level: starts(batch, level) for level in set(field.counts) if level}
        cut = [_counted_within(piece, field, g, before) for g, piece in enumerate(cut)]
    if field.cat_dim is None:
        return [piece.reshape(field.shape) for piece in cut]
    return [piece.movedim(0, dim).contiguous() for piece in cut]


def _counted_within(piece: Tensor, field: Field, graph: int, before: dict[str, Tensor]) -> Tensor:
    flat = piece.reshape(-1, field.width).clone()
    for place, level in counted(field):
        flat[:, place] -= int(before[level][graph])
    return flat.view(piece.shape)


def to_data_list(batch: BatchArrays, most: int | None = None) -> list[Any]:
    """Returns the first real graphs as ``Data`` or ``HeteroData``; without PyG, as ``Record``."""
    schema, graphs = batch.layout.schema, len(range(batch.real_counts.graphs)[:most])
    values = {field.name: pieces(batch, field) for field in schema}
    bounds = {axis.name: starts(batch, axis.name).diff().tolist() for axis in schema.axes}
    rows = [{name: counts[g] for name, counts in bounds.items()} for g in range(graphs)]
    of_graph = [{name: cut[g] for name, cut in values.items()} for g in range(graphs)]
    if schema.hetero:
        return [graph_in(schema, of_graph[g], rows[g]) for g in range(graphs)]
    nodes, edges = starts(batch, "node"), starts(batch, "edge")
    if not schema.two_sided:
        index = batch.tensors()[EDGE_INDEX]
        for g in range(graphs):
            of_graph[g] = {EDGE_INDEX: index[:, edges[g] : edges[g + 1]] - nodes[g], **of_graph[g]}
    return [
        graph_in(
            schema,
            of_graph[g],
            {
                "node": int(nodes[g + 1] - nodes[g]),
                "edge": int(edges[g + 1] - edges[g]),
                **rows[g],
            },
        )
        for g in range(graphs)
    ]


class Predictions:
    """Collects the outputs of a model for the graphs of a store, or for so many numbered graphs.

    An output is a tensor of rows, or a tuple, list or dict of outputs, which may also include None,
    numbers and scalar tensors.

    Raises (from :meth:`add`):
        TypeError: an output of another type.
        ValueError: rows that are neither graphs, nodes nor edges.
    """

    def __init__(self, store: GraphColumns | int) -> None:
        self._store = store
        graphs = store if isinstance(store, int) else len(store)
        self._pieces: list[Tensor | None] = [None] * graphs
        self._level: Level | None = None
        self._parts: dict[Any, Predictions] = {}
        self._container: Any = None
        self._scalars: list[Tensor] = []
        self._plain: Any = None

    def add(self, batch: BatchArrays, out: object) -> None:
        """Adds the output of one batch, over its physical rows.

        Raises:
            TypeError: the output holds something other than tensors and plain values.
        """
        if (parts := parts_of(out)) is not None:
            self._container = with_parts(out, [None] * len(parts))
            for key, value in parts:
                self._parts.setdefault(key, Predictions(self._store)).add(batch, value)
        elif not isinstance(out, Tensor):
            if not isinstance(out, bool | int | float | str | None):
                raise TypeError(
                    "predict() unpads tensors, in tuples, lists, dicts and dataclasses, the model "
                    f"returned a {type(out).__name__}: wrap the model with "
                    "forward=lambda model, batch: ..., or unpad with batch.unpad(...)"
                )
            self._plain = out
        elif not out.dim():
            self._scalars.append(out.detach().cpu().clone())
        else:
            self._add_rows(batch, out)

    def _add_rows(self, batch: BatchArrays, out: Tensor) -> None:
        self._level = "node" if is_dense(batch, out) else batch.level_of(out)
        ids = batch.tensors()["graph_ids"][: batch.real.graphs if batch.real else None].tolist()
        for graph, piece in zip(ids, unpadded(batch, out.detach().cpu().clone()), strict=True):
            self._pieces[graph] = self._edges_as_given(graph, piece)

    def _edges_as_given(self, graph: int, piece: Tensor) -> Tensor:
        """Undoes the store's sorting of edges by destination."""
        if isinstance(self._store, int):
            return piece
        places = self._store.origin_of(graph, self._level or "")
        if places is None:
            return piece
        origin = torch.from_numpy(places.astype("int64"))
        return torch.empty_like(piece).index_copy_(0, origin, piece)

    def in_order(self) -> Any:
        """Returns the outputs of all graphs that were added, in the order of the store.

        A tensor ``[n, ...]`` for an output per graph, a list of ``n`` tensors for other rows and
        for blocks as wide as the batch's largest graph, ``[batches]`` for a scalar tensor, and the
        latest value for anything else; in tuples, lists and dicts as the model returns them.
        """
        if self._container is not None:
            parts = [self._parts[key].in_order() for key, _ in parts_of(self._container) or ()]
            return with_parts(self._container, parts)
        if self._scalars:
            return torch.stack(self._scalars)
        if self._level is None:
            return self._plain
        pieces = [piece for piece in self._pieces if piece is not None]
        alike = len({piece.shape for piece in pieces}) <= 1
        return torch.stack(pieces) if self._level == "graph" and alike else pieces
