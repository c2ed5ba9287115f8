"""A layout whose sizes are arguments of a traced function, so that one trace serves all buckets.

A compiled forward reads a bucket's sizes as Python numbers. Where they come from the shape of a
tensor instead, a trace can keep them symbolic, and what it branches on becomes a condition on them.
Only what is the same for all buckets is there otherwise: a forward that reads the bucket's number
or its reserves fails, and is traced once per bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from staticgraph.batches.slots.slots import UNPLANNED, SlotLayout
from staticgraph.schema import Level, Schema
from staticgraph.sizes.capacity import Capacity


def sizes_of(capacity: Capacity) -> Tensor:
    """A tensor without memory whose shape is 0, since the product may exceed 63 bits, then a
    capacity: nodes, edges, graphs, the nodes of the largest graph, then the extra rows."""
    rows = (rows for _, rows in capacity.extra)
    shape = (0, capacity.nodes, capacity.edges, capacity.graphs, capacity.max_graph_nodes, *rows)
    return torch.empty_strided(shape, [0] * len(shape), device="meta")


class Sizes:
    """The part of a :class:`Capacity` that a forward reads."""

    def __init__(self, like: Capacity, shape: Sequence[int]) -> None:
        self.nodes: int = shape[0]
        self.edges: int = shape[1]
        self.graphs: int = shape[2]
        self.max_graph_nodes: int = shape[3]
        names = tuple(name for name, _ in like.extra)
        self.extra: tuple[tuple[str, int], ...] = tuple(zip(names, shape[4:], strict=True))
        self.node_limit: int = self.nodes - like.node_reserve

    @property
    def nodes_each(self) -> int:
        """As of a capacity."""
        equal = self.max_graph_nodes * self.graphs == self.nodes and not self.extra
        return self.max_graph_nodes if equal else 0

    def rows(self, level: str) -> int:
        """Physical rows of a level, as of a capacity."""
        counts = {"node": self.nodes, "edge": self.edges, "graph": self.graphs, **dict(self.extra)}
        return counts[level]


class SizedLayout:
    """Stands for the layout of any bucket inside a trace.

    Args:
        like: the layout of one of the buckets.
        shape: the sizes, in the order of :func:`sizes_of`, without its 0.
    """

    def __init__(self, like: SlotLayout, shape: Sequence[int]) -> None:
        self.schema: Schema = like.schema
        self.pointers: bool = like.pointers
        self.capacity: Capacity = cast(Any, Sizes(like.capacity, shape))
        self.rows: dict[Level, int] = {level: self.capacity.rows(level) for level in like.rows}
        self.bucket: int = UNPLANNED
