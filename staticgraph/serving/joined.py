"""Graphs of several stores -> one store of them, in the order given.

Every array has the dtype that a model sees, however compactly its stores keep it: the loops that
fill a batch are compiled for each combination of dtypes, and a server must not meet a new one with
a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from staticgraph.schema import Level, Schema
from staticgraph.serving.flat_graphs import Stretch, store_of
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore


class Run(NamedTuple):
    """Graphs ``first`` to ``last``, less one, of a store."""

    store: GraphColumns
    first: int
    last: int

    def rows(self, level: Level) -> slice:
        """Where these graphs' rows stand among the store's."""
        offsets = self.store.offsets_of(level)
        return slice(int(offsets[self.first]), int(offsets[self.last]))


def joined(runs: Sequence[Run]) -> GraphStore:
    """One store of the graphs of all runs, which have the same fields.

    Args:
        runs: at least one.
    """
    for run in runs:
        run.store.verify(np.arange(run.first, run.last))
    schema = runs[0].store.schema

    def flat(part: Callable[[Run], Array], dtype: str = "int64") -> Array:
        return np.concatenate([part(run) for run in runs]).astype(dtype, copy=False)

    def offsets(level: Level) -> IntArray:
        counts = flat(lambda run: np.diff(run.store.offsets_of(level)[run.first : run.last + 1]))
        return np.concatenate([[0], np.cumsum(counts)])

    def origins(level: Level, found: Callable[[GraphColumns], Array | None]) -> Array:
        kept = [found(run.store) for run in runs]
        if not any(origin is not None and len(origin) for origin in kept):
            return np.empty(0, np.int64)
        return np.concatenate([_origins(run, level, o) for run, o in zip(runs, kept, strict=True)])

    columns = {}
    for item in schema:
        rows = item.rows if item.level == "graph" else 1

        def of(run: Run, name: str = item.name, level: Level = item.level, rows: int = rows):
            here = run.rows(level)
            return run.store.columns[name][here.start * rows : here.stop * rows]

        columns[item.name] = flat(of, item.dtype)
    edge_offsets = offsets("edge")
    plain = not (schema.hetero or schema.two_sided)
    return GraphStore(
        schema=schema,
        node_offsets=offsets("node"),
        edge_offsets=edge_offsets,
        edge_src=flat(lambda run: run.store.edge_src[run.rows("edge")]),
        edge_dst=flat(lambda run: run.store.edge_dst[run.rows("edge")]),
        row_ptr=_row_pointers(runs, edge_offsets) if plain else np.empty(0, np.int64),
        transpose=flat(lambda run: run.store.transpose[run.rows("edge")]),
        edge_origin=origins("edge", lambda store: store.edge_origin),
        columns=columns,
        name="requests",
        offsets={axis.name: offsets(axis.name) for axis in schema.axes},
        origins={
            axis.name: found
            for axis in schema.edge_axes
            if len(found := origins(axis.name, lambda s, a=axis.name: s.origins.get(a)))
        },
    )


def joined_any(stretches: Sequence[Run | Stretch], schema: Schema) -> GraphStore:
    """One store of the graphs of all, whether they are columns already or flat."""
    flat = [stretch for stretch in stretches if isinstance(stretch, Stretch)]
    if len(flat) == len(stretches):
        return store_of(flat, schema)
    return joined(
        [
            Run(store_of([each], schema), 0, each.last - each.first)
            if isinstance(each, Stretch)
            else each
            for each in stretches
        ]
    )


def _origins(run: Run, level: Level, origin: Array | None) -> Array:
    """Where each edge stood in its graph; its own place where the store had them sorted."""
    here = run.rows(level)
    if origin is not None and len(origin):
        return origin[here].astype(np.int64)
    counts = np.diff(run.store.offsets_of(level)[run.first : run.last + 1])
    return np.arange(here.stop - here.start) - np.repeat(np.cumsum(counts) - counts, counts)


def _row_pointers(runs: Sequence[Run], edge_offsets: IntArray) -> IntArray:
    """``[sum n + 1]`` where each node's edges begin."""
    pieces, before = [], 0
    for run in runs:
        first = int(run.store.edge_offsets[run.first])
        pieces.append(run.store.row_ptr[run.rows("node")].astype(np.int64) - first + before)
        before += int(run.store.edge_offsets[run.last]) - first
    return np.concatenate([*pieces, edge_offsets[-1:]])
