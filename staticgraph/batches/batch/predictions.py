"""Outputs of padded batches, split per graph and returned in the order of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import parts_of, with_parts
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.batch.unbatch import is_dense
from staticgraph.schema import Level
from staticgraph.store.graph_columns import GraphColumns


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

    def add(self, batch: StaticBatch, out: object) -> None:
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

    def _add_rows(self, batch: StaticBatch, out: Tensor) -> None:
        self._level = "node" if is_dense(batch, out) else batch.level_of(out)
        ids = batch.graph_ids[: batch.real.graphs if batch.real else None].tolist()
        for graph, piece in zip(ids, batch.unpad(out.detach().cpu().clone()), strict=True):
            self._pieces[graph] = self._edges_as_given(graph, piece)

    def _edges_as_given(self, graph: int, piece: Tensor) -> Tensor:
        """Undoes the store's sorting of edges by destination."""
        if isinstance(self._store, int):
            return piece
        found = self._store.origin_of(graph, self._level or "")
        if found is None:
            return piece
        origin = torch.from_numpy(found.astype("int64"))
        return torch.empty_like(piece).index_copy_(0, origin, piece)

    def in_order(self) -> Any:
        """Returns the outputs of all graphs, in the order of the store.

        A tensor ``[n, ...]`` for an output per graph, a list of ``n`` tensors for other rows,
        ``[batches]`` for a scalar tensor, and the latest value for anything else; in tuples, lists
        and dicts as the model returns them.
        """
        if self._container is not None:
            found = [self._parts[key].in_order() for key, _ in parts_of(self._container) or ()]
            return with_parts(self._container, found)
        if self._scalars:
            return torch.stack(self._scalars)
        if self._level is None:
            return self._plain
        pieces = [piece for piece in self._pieces if piece is not None]
        assert len(pieces) == len(self._pieces)
        return torch.stack(pieces) if self._level == "graph" else pieces
