"""Converts the target of a store to a given task: regression, binary or classes.

The dtype of ``y`` determines the task (:mod:`staticgraph.training.tasks`), so this returns a store
whose ``y`` has that dtype. Tables are read with the right dtype from the start
(:mod:`staticgraph.datasets.targets`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from staticgraph.datasets.npz import as_float32
from staticgraph.datasets.specs import AUTO, check_task
from staticgraph.errors import BadGraph
from staticgraph.schema import Field
from staticgraph.store.columns import Array
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.sharded import Sharded


def as_task(store: GraphStore, task: str) -> GraphStore:
    """Returns the store with ``y`` converted for a task.

    The store itself is returned for ``auto``, or if its ``y`` already fits.

    Args:
        store: a store with one row of ``y`` per graph; one without ``y`` is returned unchanged.
        task: one of :data:`staticgraph.datasets.specs.TASKS`.

    Raises:
        BadGraph: if the values do not fit the task.
        ValueError: if there is no such task, or the store is in shards, whose columns are on disk.
    """
    check_task(task)
    if task == AUTO or "y" not in store.schema:
        return store
    y, column = store.schema["y"], store.column("y")
    values = np.asarray(column)
    if np.dtype(y.dtype).kind not in "fiub":
        raise BadGraph(f"{store.name} has y as {y.describe()}, of which there is no {task}")
    if task == "classes":
        field, targets = _classes(store.name, y, values)
    else:
        if task == "binary" and not np.isin(values[~_missing(values)], (0, 1)).all():
            odd = values[~_missing(values) & ~np.isin(values, (0, 1))][0]
            raise BadGraph(
                f"{store.name}: --task binary takes 0 and 1, and y has {odd}: give --task classes "
                "or regression"
            )
        if np.dtype(y.dtype).kind == "f":
            return store
        field = replace(y, dtype="float32", classes=())
        targets = as_float32(values, store.name)
    if field == y:
        return store
    if isinstance(store, Sharded):
        raise ValueError(
            f"{store.name} is a store in shards, whose y is {y.describe()} on disk: write it again "
            f"from its source with staticgraph convert --task {task}; or join it, staticgraph "
            f"convert --data ITS_FOLDER --out JOINED, and give --data JOINED --task {task}"
        )
    fields = tuple(field if item.name == "y" else item for item in store.schema)
    return replace(
        store,
        schema=replace(store.schema, fields=fields),
        columns={**store.columns, "y": targets},
    )


def _missing(values: Array) -> Array:
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)


def _classes(name: str, y: Field, values: Array) -> tuple[Field, Array]:
    if y.width != 1 or y.rows != 1:
        raise BadGraph(
            f"{name}: --task classes takes one label per graph, and y is {y.describe()}: make a "
            "store whose graphs have the one that you want"
        )
    missing = np.flatnonzero(_missing(values).reshape(-1))
    if len(missing):
        raise BadGraph(
            f"{name}: graph {missing[0]} has no label (NaN), and classes take one of every graph: "
            "leave it out"
        )
    broken = values[values != np.floor(values)]
    if len(broken):
        raise BadGraph(
            f"{name}: --task classes takes whole numbers, and y has {broken.flat[0]:g}: give "
            "--task regression"
        )
    kinds, codes = np.unique(values.reshape(-1), return_inverse=True)
    if np.dtype(y.dtype).kind != "f" and kinds[0] >= 0:  # class numbers already
        return y, values
    counted = bool((kinds == np.arange(len(kinds))).all())
    called = () if counted else tuple(f"{value:.15g}" for value in kinds.tolist())
    return replace(y, shape=(), dtype="int64", has_nan=False, classes=called), codes.astype(
        np.int64
    )
