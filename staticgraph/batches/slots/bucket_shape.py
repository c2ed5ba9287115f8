"""What follows from a batch's bucket alone: sizes, levels, types; known before any graph is.

These are numbers and names on the host, the same for every batch of the bucket, so a compiled step
may branch on them.
"""

from __future__ import annotations

from torch import Tensor

from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.schema import Level
from staticgraph.sizes.capacity import Capacity


class BucketShape:
    """The fixed part of a :class:`staticgraph.StaticBatch`.

    Attributes:
        bucket: the bucket's number.
        layout: the arrays of a slot for this bucket.
    """

    __slots__ = ("bucket", "layout")

    def __init__(self, layout: SlotLayout) -> None:
        self.layout: SlotLayout = layout
        self.bucket: int = layout.bucket

    @property
    def capacity(self) -> Capacity:
        """The bucket's physical sizes."""
        return self.layout.capacity

    @property
    def num_nodes(self) -> int:
        """``N``, padding included."""
        return self.layout.capacity.nodes

    @property
    def num_edges(self) -> int:
        """``E``, padding included."""
        return self.layout.capacity.edges

    @property
    def num_graphs(self) -> int:
        """``G``, padding included: the size to give to pooling."""
        return self.layout.capacity.graphs

    @property
    def batch_size(self) -> int:
        """``G``, as :attr:`num_graphs`."""
        return self.layout.capacity.graphs

    def level_of(self, value: Tensor) -> Level:
        """Returns the level of a tensor's rows by its leading dimension.

        A level is nodes, edges, graphs or an axis.

        Raises:
            ValueError: the leading dimension is that of no level.
        """
        rows = value.shape[0] if value.dim() else -1
        for level in self.levels:
            if rows == self.layout.capacity.rows(level):
                return level
        plural = {"graph": "graphs", "node": "nodes", "edge": "edges"}
        known = [f"{self.capacity.rows(name)} ({plural.get(name, name)})" for name in self.levels]
        expected = f"{', '.join(known[:-1])} or {known[-1]}"
        raise ValueError(
            f"a tensor of shape {list(value.shape)} has no rows of this batch: expected a leading "
            f"size of {expected}"
        )

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels that the rows of a tensor of this batch can have."""
        schema = self.layout.schema
        own = tuple(axis.name for axis in schema.axes)
        return ("graph", *own) if schema.hetero else ("graph", "node", "edge", *own)

    @property
    def node_types(self) -> list[str]:
        """The node types; empty if there is only one kind of node."""
        return [axis.key for axis in self.layout.schema.node_axes]

    @property
    def edge_types(self) -> list[tuple[str, str, str]]:
        """The edge types; empty if there is only one kind of node."""
        return [axis.key for axis in self.layout.schema.edge_axes]

    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Returns node types and edge types, as PyG's ``HeteroData`` does."""
        return self.node_types, self.edge_types
