"""Runs new graphs through a plan's buckets and returns outputs in the order of the graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch

from staticgraph.batches.batch.predictions import Predictions
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.batches.padding.read_batch import is_pyg_batch, split
from staticgraph.nn.context.bound_batch import Restored
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import Level, Schema
from staticgraph.steps.computation.model_call import Path, name_of, output_tensors
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.on_device import DeviceStore


class Predictor(Protocol):
    """Runs batches of a plan: a :class:`staticgraph.StaticGraphRunner` or an exported model."""

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
        """The device it runs on."""
        ...

    def predict(self, graphs: Any) -> Any:
        """Returns the outputs of graphs."""
        ...

    def predict_batch(self, batch: StaticBatch) -> Any:
        """Returns the output of a batch."""
        ...


def predict(predictor: Predictor, graphs: Any, schema: Schema | None) -> Any:
    """Returns the outputs of graphs, in the order given, without padding.

    Args:
        predictor: runs the batches.
        graphs: a list of ``Data``, a PyG dataset, or any iterable of graphs; or a store.
        schema: the fields to expect; None reads them from the graphs.

    Raises:
        TypeError: ``graphs`` is a loader.
    """
    with Restored(nothing=True):  # PyG's own functions make a store, even inside a bound block
        if isinstance(graphs, GraphStore | DeviceStore):
            store = graphs
        elif isinstance(graphs, StaticLoader):
            raise TypeError(
                "predict() takes graphs, not a StaticLoader: give it the store, or eval_step() "
                "each of the loader's batches"
            )
        elif len(every := listed(graphs)) == 0:
            return []
        else:
            store = new_graphs(every, predictor.plan, schema, progress=True)
        any_data = replace(predictor.plan, digest=None)
        loader = StaticLoader(
            store, any_data, exact=False, device=predictor.device, pointers=predictor.pointers
        )
        predictions = Predictions(store.host if isinstance(store, DeviceStore) else store)
        for batch in loader:
            predictions.add(batch, predictor.predict_batch(batch))
        return predictions.in_order()


def listed(graphs: Any) -> Any:
    """Graphs with a length: an iterator is turned into a list."""
    if is_pyg_batch(graphs):
        return split(graphs)
    if not any(hasattr(graphs, name) for name in ("__len__", "__iter__", "__getitem__")):
        raise TypeError(f"{graphs!r} is not graphs: give a list of torch_geometric.data.Data")
    return graphs if hasattr(graphs, "__len__") else list(graphs)


def new_graphs(
    graphs: Any, plan: BucketPlan, schema: Schema | None, progress: bool = False
) -> GraphStore:
    """Makes a store of graphs that a model has not seen.

    Args:
        graphs: a list of ``Data``, or a PyG dataset.
        plan: the model's plan; if its data had edges, each graph must say which edges it has.
        schema: the fields to expect; None reads them from the graphs, whose edges then keep their
            order if the plan was made for a list, as in steps.
        progress: whether to show the progress of :meth:`GraphStore.from_pyg`.

    Raises:
        BadGraph: a graph lacks a field or its edges, or has a field of another dtype or width.
    """
    from staticgraph.store.pyg.flatten import from_pyg

    known = plan.has_edges is True
    return from_pyg(
        GraphStore,
        graphs,
        schema=schema,
        edges=known,
        progress=progress,
        keep_order=schema is None and isinstance(plan.source(), list),
    )


def require_rows(out: Any, levels: Mapping[Path, Level | None]) -> None:
    """Refuses an output with a tensor that has no rows of the batch.

    Raises:
        ValueError: there is such a tensor; the message names it.
    """
    tensors = dict(output_tensors(out))
    for path, level in levels.items():
        if level is None and tensors[path].dim():
            raise ValueError(
                f"predict() gives each graph its rows, and the model's output"
                f"{f' {name_of(path)!r}' if path else ''} has no rows of the batch: leave it "
                "out with forward=lambda model, batch: ..., or say what its rows are with "
                "rows={...}"
            )
