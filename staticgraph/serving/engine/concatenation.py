"""Graphs of several stores -> one store, in the order given.

Every array has the dtype that a model sees, even if the stores keep it in a smaller one: the loops
that fill a batch are compiled for each combination of dtypes, and no request may cause a new
compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from staticgraph.schema import Level, Schema
from staticgraph.serving.bodies.flat_graphs import FlatSpan, store_of
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore


class StoreSpan(NamedTuple):
    """Graphs ``first`` to ``last - 1`` of a store."""

    store: GraphColumns
    first: int
    last: int

    def rows(self, level: Level) -> slice:
        """The slice of these graphs' rows among the store's."""
        offsets = self.store.offsets_of(level)
        return slice(int(offsets[self.first]), int(offsets[self.last]))


def concatenated(spans: Sequence[StoreSpan]) -> GraphStore:
    """One store of the graphs of all spans, which have the same fields.

    Args:
        spans: at least one.
    """
    for span in spans:
        span.store.verify(np.arange(span.first, span.last))
    schema = spans[0].store.schema

    def flat(part: Callable[[StoreSpan], Array], dtype: str = "int64") -> Array:
        """One array of all spans, concatenated."""
        return np.concatenate([part(span) for span in spans]).astype(dtype, copy=False)

    def offsets(level: Level) -> IntArray:
        """``[graphs + 1]`` offsets of the rows of each graph."""
        counts = flat(
            lambda span: np.diff(span.store.offsets_of(level)[span.first : span.last + 1])
        )
        return np.concatenate([[0], np.cumsum(counts)])

    def origins(level: Level, found: Callable[[GraphColumns], Array | None]) -> Array:
        """The positions of rows before sorting; empty if no store sorted any."""
        kept = [found(span.store) for span in spans]
        if not any(origin is not None and len(origin) for origin in kept):
            return np.empty(0, np.int64)
        return np.concatenate(
            [_origins(span, level, o) for span, o in zip(spans, kept, strict=True)]
        )

    columns = {}
    for item in schema:
        rows = item.rows if item.level == "graph" else 1

        def of(span: StoreSpan, name: str = item.name, level: Level = item.level, rows: int = rows):
            """The rows of one field in a span."""
            here = span.rows(level)
            return span.store.columns[name][here.start * rows : here.stop * rows]

        columns[item.name] = flat(of, item.dtype)
    edge_offsets, none = offsets("edge"), np.empty(0, np.int64)
    return GraphStore(
        schema=schema,
        node_offsets=offsets("node"),
        edge_offsets=edge_offsets,
        edge_src=flat(lambda span: span.store.edge_src[span.rows("edge")]),
        edge_dst=flat(lambda span: span.store.edge_dst[span.rows("edge")]),
        row_ptr=_row_pointers(spans, edge_offsets) if schema.has_pointers else none,
        transpose=flat(lambda span: span.store.transpose[span.rows("edge")]),
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


def concatenated_any(spans: Sequence[StoreSpan | FlatSpan], schema: Schema) -> GraphStore:
    """One store of the graphs of all spans, whether of stores or of flat graphs."""
    flat = [span for span in spans if isinstance(span, FlatSpan)]
    if len(flat) == len(spans):
        return store_of(flat, schema)
    return concatenated(
        [
            StoreSpan(store_of([each], schema), 0, each.last - each.first)
            if isinstance(each, FlatSpan)
            else each
            for each in spans
        ]
    )


def _origins(span: StoreSpan, level: Level, origin: Array | None) -> Array:
    """The original position of each edge in its graph; its current one if edges came sorted."""
    here = span.rows(level)
    if origin is not None and len(origin):
        return origin[here].astype(np.int64)
    counts = np.diff(span.store.offsets_of(level)[span.first : span.last + 1])
    return np.arange(here.stop - here.start) - np.repeat(np.cumsum(counts) - counts, counts)


def _row_pointers(spans: Sequence[StoreSpan], edge_offsets: IntArray) -> IntArray:
    """``[sum n + 1]`` offsets of the edges of each node."""
    pieces, before = [], 0
    for span in spans:
        first = int(span.store.edge_offsets[span.first])
        pieces.append(span.store.row_ptr[span.rows("node")].astype(np.int64) - first + before)
        before += int(span.store.edge_offsets[span.last]) - first
    return np.concatenate([*pieces, edge_offsets[-1:]])
