"""New graphs through a plan's buckets and back into their order, whatever runs the buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from staticgraph.batches.batch.predictions import Predictions
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.nn.context.present import Restored
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import Level, Schema
from staticgraph.steps.rows.provenance import Path, leaves, name_of
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore
from staticgraph.store.pyg.flatten import from_pyg


class Predictor(Protocol):
    """Runs batches of a plan: a :class:`staticgraph.StaticGraphRunner`, or an exported model."""

    @property
    def plan(self) -> BucketPlan:
        """The buckets."""
        ...

    @property
    def pointers(self) -> bool:
        """Whether batches need row pointers."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    def predict(self, graphs: Any) -> Any:
        """The outputs of graphs."""
        ...

    def predict_batch(self, batch: StaticBatch) -> Any:
        """The output of a batch."""
        ...


def predict(predictor: Predictor, graphs: Any, schema: Schema | None) -> Any:
    """Outputs for graphs, in the order given, padding left out.

    Args:
        predictor: runs the batches.
        graphs: a list of ``Data``, a PyG data set, or anything that gives them one by one; or a
            store.
        schema: the fields to expect; None reads them off the graphs.

    Raises:
        TypeError: ``graphs`` is a loader.
    """
    with Restored(nothing=True):  # a store is made by PyG's own functions, wherever this stands
        if isinstance(graphs, GraphStore | DeviceStore):
            store = graphs
        elif isinstance(graphs, StaticLoader):
            raise TypeError(
                "predict() takes graphs, not a StaticLoader: give it the store, or eval_step() "
                "each of the loader's batches"
            )
        elif len(given := listed(graphs)) == 0:
            return []
        else:
            store = new_graphs(given, predictor.plan, schema, progress=True)
        any_data = replace(predictor.plan, digest=None)
        loader = StaticLoader(
            store, any_data, exact=False, device=predictor.device, pointers=predictor.pointers
        )
        predictions = Predictions(store.host if isinstance(store, DeviceStore) else store)
        for batch in loader:
            predictions.add(batch, predictor.predict_batch(batch))
        return predictions.in_order()


def listed(graphs: Any) -> Any:
    """Graphs that have a length, where they came one after the other."""
    return graphs if hasattr(graphs, "__len__") else list(graphs)


def new_graphs(
    graphs: Any, plan: BucketPlan, schema: Schema | None, progress: bool = False
) -> GraphStore:
    """A store of graphs that a model has not seen.

    Args:
        graphs: a list of ``Data``, or a PyG data set.
        plan: of the model; where its data had edges, each graph must say which it has.
        schema: the fields to expect; None reads them off the graphs.
        progress: show what :meth:`GraphStore.from_pyg` shows.

    Raises:
        BadGraph: a graph lacks a field or its edges, or has a field of another dtype or width.
    """
    known = plan.has_edges is True
    return from_pyg(GraphStore, graphs, schema=schema, edges=known, progress=progress)


def require_rows(out: Any, levels: Mapping[Path, Level | None]) -> None:
    """Refuses an output with a tensor that has no rows of the batch.

    Raises:
        ValueError: it has one; the message names it.
    """
    tensors = dict(leaves(out))
    for path, level in levels.items():
        if level is None and tensors[path].dim():
            raise ValueError(
                f"predict() gives each graph its rows, and the model's output"
                f"{f' {name_of(path)!r}' if path else ''} has no rows of the batch: leave it "
                "out with forward=lambda model, batch: ..., or say what its rows are with "
                "rows={...}"
            )
