"""Outputs of padded batches, put back graph by graph into the order of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.static_batch import StaticBatch
from staticgraph.schema import Level
from staticgraph.store.graph_columns import GraphColumns


class Predictions:
    """Collects one output a graph of a store.

    Raises (from :meth:`add`):
        TypeError: an output that is neither a tensor nor a dict of them, one a type.
        ValueError: rows that are neither graphs, nodes nor edges.
    """

    def __init__(self, store: GraphColumns) -> None:
        self._store = store
        self._pieces: list[Tensor | None] = [None] * len(store)
        self._level: Level | None = None
        self._parts: dict[Any, Predictions] = {}

    def add(self, batch: StaticBatch, out: object) -> None:
        """Takes the output of one batch, over its physical rows."""
        if isinstance(out, dict) and out:
            for key, value in out.items():
                self._parts.setdefault(key, Predictions(self._store)).add(batch, value)
            return
        if not isinstance(out, Tensor):
            raise TypeError(
                "predict() unpads one tensor, or a dict of them, the model returned a "
                f"{type(out).__name__}: wrap the model with forward=lambda model, batch: ..., or "
                "unpad with batch.unpad(...)"
            )
        self._level = batch.level_of(out)
        ids = batch.graph_ids[: batch.real.graphs if batch.real else None].tolist()
        for graph, piece in zip(ids, batch.unpad(out.detach().cpu().clone()), strict=True):
            self._pieces[graph] = self._edges_as_given(graph, piece)

    def _edges_as_given(self, graph: int, piece: Tensor) -> Tensor:
        """Undoes the store's sorting of edges by destination."""
        edges = {"edge": self._store.edge_origin, **self._store.origins}
        found = edges.get(self._level or "")
        if found is None or not len(found):
            return piece
        first, last = self._store.offsets_of(self._level or "")[graph : graph + 2]
        origin = torch.from_numpy(found[first:last].astype("int64"))
        return torch.empty_like(piece).index_copy_(0, origin, piece)

    def in_order(self) -> Any:
        """``[n, ...]`` for an output a graph, else a list of ``n`` tensors; a dict of such where
        the model returns a dict."""
        if self._parts:
            return {key: part.in_order() for key, part in self._parts.items()}
        pieces = [piece for piece in self._pieces if piece is not None]
        assert len(pieces) == len(self._store)
        return torch.stack(pieces) if self._level == "graph" else pieces
