"""Batches of anybody's loader in the few shapes of a plan.

The problem: whoever has a loader of their own (a weighted sampler, transforms that draw, a data set
in a database, a batch class that is not PyG's) has batches of every shape, and pads them by hand,
by powers of two. The idea: a :class:`Padder` is a function from a batch to a
:class:`staticgraph.StaticBatch`, usable as a ``collate_fn``, with capacities that were planned from
data (:func:`staticgraph.plan_stream`). The invariant: a padded batch is what a
:class:`staticgraph.StaticLoader` would have made of the same graphs, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Any, Literal

import torch

from staticgraph.batches.batch.own_class import built_like, template_of
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.padding.batch_rows import Rows
from staticgraph.batches.padding.read_batch import learn, read
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import UNPLANNED, SlotLayout
from staticgraph.errors import GraphTooLarge
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.reserves import (
    in_form_of,
    of_equal_graphs,
    with_pairs,
    with_reserves,
)
from staticgraph.text.how_many import how_many
from staticgraph.text.numeric_options import real_option, whole_option

Overflow = Literal["error", "split", "grow"]


@dataclass(slots=True)
class PadderCounts:
    """What a padder did, in this process.

    Attributes:
        batches: how many batches it padded, the parts of a split one included.
        real, physical: rows of nodes, edges and graphs in them, without and with padding.
        overflowed: how many batches fitted no bucket.
        grown: how many capacities were added for them.
        unplanned: how many batches filled too little of their bucket, and kept their own size.
    """

    batches: int = 0
    real: tuple[int, int, int] = (0, 0, 0)
    physical: tuple[int, int, int] = (0, 0, 0)
    overflowed: int = 0
    grown: int = 0
    unplanned: int = 0

    def add(self, batch: StaticBatch) -> None:
        """Counts a padded batch."""
        capacity, real = batch.capacity, batch.real_counts
        self.batches += 1
        self.real = tuple(map(add, self.real, real[:3]))  # pyright: ignore
        rows = (capacity.nodes, capacity.edges, capacity.graphs)
        self.physical = tuple(map(add, self.physical, rows))  # pyright: ignore

    @property
    def padding(self) -> tuple[float, ...]:
        """The share of padding among the rows of nodes, edges and graphs."""
        return tuple(
            1 - real / rows if rows else 0.0
            for real, rows in zip(self.real, self.physical, strict=True)
        )

    def __str__(self) -> str:
        """One line."""
        shares = ", ".join(
            f"{share:.1%} of {name}"
            for share, name in zip(self.padding, ("nodes", "edges", "graphs"), strict=True)
        )
        return (
            f"{how_many(self.batches, 'batch')} padded (padding: {shares}), "
            f"{self.overflowed:,} fitted no bucket, {how_many(self.grown, 'capacity')} added, "
            f"{self.unplanned:,} ran in eager at their own size"
        )


class SplitBatch(list[StaticBatch]):
    """A batch that fitted no bucket, in parts that do; a step over it makes one update."""


class Padder:
    """Pads batches of any class to the smallest bucket that takes them.

    ``padder(batch)`` takes PyG's ``Batch``, a list of ``Data`` or ``HeteroData`` (so it is the
    ``collate_fn`` of a ``DataLoader``, with worker processes and ``pin_memory=True``), or, with a
    schema, a mapping of tensors, a dataclass, a ``TensorDict`` or an object of any class. Dtypes
    and device stay; a batch on a device is padded on the host and copied back.

    Args:
        plan: the buckets, or a plain list of capacities.
        schema: what is in a batch; see :meth:`staticgraph.Schema.of_batch`. By default the plan's,
            or that of the first batch if it is PyG's.
        like: a batch of the user's own class, whose attributes the padded tensors become, so that
            ``model(padder(batch))`` runs unchanged. By default a :class:`StaticBatch` is returned.
        overflow: what to do with a batch that fits no bucket: raise an ``error``; ``split`` it
            into parts (:class:`SplitBatch`), over which a runner's step makes one update; or
            ``grow``: add a capacity to the plan. Not the first two in a worker process of a
            ``DataLoader``, which has a copy of the padder.
        headroom, multiple: a capacity that is added has ``headroom`` times the rows of the batch,
            rounded up to a multiple.
        max_growth: how many capacities may be added, each in place of the one before.
        min_fill: a batch with fewer rows of nodes and edges than this share of its bucket's keeps
            its own size, and a runner runs it in eager, which costs what its rows cost. None takes
            the share below which a runner with ``mode="auto"`` measured that to be faster (1 where
            a CPU runs all phases in eager); 0 without one. Not with a budget or several ranks.
        sort_edges: sort the edges of PyG's graphs by destination, as a store does, so that no step
            has to find their order (mode ``fused`` on a CPU, ``kernels=True``). By default they
            keep PyG's order; a model whose result depends on it is refused by name.

    Attributes:
        plan: the buckets with what the fields require; give a runner this one.
        least_fills: the measured shares, by bucket; the runner's own dict.
        counts: what it did; see :class:`PadderCounts`.

    Raises:
        ValueError: an unknown ``overflow``, ``like`` without a schema, rows that the plan lacks, or
            ``sort_edges`` of a class that is not PyG's.

    Raises (when called):
        GraphTooLarge: the batch fits no bucket.
        BadGraph: a field is missing, or has another dtype or width.
        TypeError: the fields of such a batch are not known.
    """

    def __init__(
        self,
        plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
        *,
        schema: Schema | None = None,
        like: Any = None,
        overflow: Overflow = "error",
        headroom: float = 1.25,
        multiple: int = 8,
        max_growth: int = 4,
        min_fill: float | None = None,
        sort_edges: bool = False,
    ) -> None:
        if overflow not in ("error", "split", "grow"):
            raise ValueError(f"overflow={overflow!r}: choose 'error', 'split' or 'grow'")
        self.plan: BucketPlan = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
        self.counts: PadderCounts = PadderCounts()
        self.overflow: Overflow = overflow
        self._headroom = real_option("headroom", headroom)
        self._multiple = whole_option("multiple", multiple, 1)
        self._max_growth = whole_option("max_growth", max_growth, 0)
        self._min_fill = None if min_fill is None else real_option("min_fill", min_fill, 0)
        self.least_fills: dict[int, float] = {}
        self._layouts: list[SlotLayout] = []
        schema = schema or self.plan.schema
        self._sort_edges = sort_edges
        if sort_edges:
            schema = _with_sorted_edges(schema, self.plan)
        if like is not None and (schema is None or not schema.names):
            raise ValueError("like= needs schema=sg.Schema.of_batch(example, ...)")
        self._like = like is not None
        if schema is not None:
            if self._like:
                schema = replace(schema, like=template_of(like, schema))
            self._use(schema)

    @property
    def schema(self) -> Schema | None:
        """The fields of a padded batch; None before the first batch where nobody said."""
        return self.plan.schema

    def _use(self, schema: Schema) -> None:
        """Brings the plan's capacities into the form that the fields require."""
        plan = self.plan
        if schema != plan.schema:
            named = {axis.name for axis in schema.axes}
            unknown = [name for c in plan.capacities for name, _ in c.extra if name not in named]
            if unknown:
                raise ValueError(
                    f"the plan has rows of {unknown[0]!r}, and the batches have none: name them in "
                    f"sg.Schema.of_batch(example, {unknown[0]}=(...))"
                )
            capacities = tuple(_as_required(c, schema) for c in plan.capacities)
            plan = replace(plan, capacities=capacities)
        self.plan = replace(plan, schema=schema)
        self._layouts = [SlotLayout(n, c, schema) for n, c in enumerate(self.plan.capacities)]

    def __call__(self, batch: Any) -> Any:
        """Returns the batch in the shapes of the smallest bucket that takes it."""
        if isinstance(batch, StaticBatch | SplitBatch):
            return batch
        padded = self.pad(batch)
        if self._like and isinstance(padded, StaticBatch):
            return built_like(padded, marked=True)
        return padded

    def pad(self, batch: Any, *, grows: bool = True) -> StaticBatch | SplitBatch:
        """Returns the batch as a :class:`StaticBatch`, also where ``like`` is given.

        With ``grows=False``, one for which ``overflow='grow'`` would add a capacity keeps its own
        size instead, for an evaluation on one of several ranks.
        """
        rows = self.rows_of(batch)
        bucket = self.bucket_of(rows)
        if bucket is not None:
            least = self._min_fill
            least = self.least_fills.get(bucket, 0) if least is None else least
            planned, real = self._layouts[bucket].capacity, rows.real
            dense = real.nodes + real.edges >= least * (planned.nodes + planned.edges)
            return self.fill(rows, bucket) if dense else self._unplanned(rows)
        self.counts.overflowed += 1
        if self.overflow == "grow" and not grows:
            return self._unplanned(rows)
        if self.overflow == "grow" and torch.utils.data.get_worker_info() is None:
            self.grow(rows.real.sizes)
            return self.fill(rows, len(self._layouts) - 1)
        if self.overflow == "split":
            parts = [(part, self.bucket_of(part)) for part in self._halved(rows)]
            return SplitBatch(self.fill(part, b) for part, b in parts if b is not None)
        raise self.refused(rows)

    def refused(self, rows: Rows) -> GraphTooLarge:
        """Returns the error for rows that fit no bucket."""
        most = max(capacity.max_graph_nodes for capacity in self.plan.capacities)
        if rows.real.largest > most:
            return GraphTooLarge(
                f"a batch has a graph of {how_many(rows.real.largest, 'node')}, and the plan takes "
                f"graphs of at most {how_many(most, 'node')}: make it for graphs of that size, "
                "too, sg.plan_stream(graphs, batch_size=...) (where a transform drops nodes at "
                "random, of the graphs before it), or pass overflow='grow' to the padder, outside "
                "of worker processes"
            )
        return self._too_large(str(rows.real))

    def rows_of(self, batch: Any) -> Rows:
        """Returns the rows of a batch, unpadded."""
        schema = self.schema
        if schema is None:
            schema = learn(batch)
            if self._sort_edges:
                schema = replace(schema, keep_order=False)
            self._use(schema)
        return read(batch, schema)

    def bucket_of(self, rows: Rows) -> int | None:
        """Returns the smallest bucket that takes these rows; None without one."""
        return next((x.bucket for x in self._layouts if rows.real.fit(x.capacity)), None)

    def fill(self, rows: Rows, bucket: int) -> StaticBatch:
        """Returns rows in the shapes of a bucket that takes them."""
        return self._filled(rows, self._layouts[bucket])

    def _filled(self, rows: Rows, layout: SlotLayout) -> StaticBatch:
        padded = rows.padded(layout)
        self.counts.add(padded)
        return padded if rows.device.type == "cpu" else padded.to(rows.device)

    def _unplanned(self, rows: Rows) -> StaticBatch:
        """Returns rows at their own size."""
        schema = self.schema
        assert schema is not None
        self.counts.unplanned += 1
        return self._filled(rows, unplanned_layout(rows.real, self.plan.capacities[-1], schema))

    def grow(self, sizes: Sequence[int]) -> None:
        """Adds a capacity for a batch, in place of the one that was added before.

        Args:
            sizes: its nodes, edges, graphs, the nodes of its largest graph, and the rows of every
                further component.

        Raises:
            GraphTooLarge: ``max_growth`` capacities were added already.
        """
        schema = self.schema
        assert schema is not None
        nodes, edges, graphs, largest, *extra = sizes
        if self.counts.grown == self._max_growth:
            raise self._too_large(
                f"{nodes:,} nodes, {edges:,} edges, {graphs:,} graphs, after "
                f"{how_many(self._max_growth, 'growth')} (max_growth=),"
            )
        planned = len(self.plan.capacities) - (self.counts.grown > 0)
        last = self.plan.capacities[-1]
        capacity = Capacity.distinct(
            max(self._rounded(nodes), last.nodes),
            max(self._rounded(edges), last.edges),
            max(graphs + 1, last.graphs),
            max(largest, last.max_graph_nodes),
            {
                name: max(self._rounded(more), rows)
                for more, (name, rows) in zip(extra, last.extra, strict=True)
            },
        )
        capacity = in_form_of(with_reserves(capacity, schema), last)
        if not capacity.nodes_each:
            capacity = replace(capacity, max_graph_nodes=capacity.node_limit)
        self.counts.grown += 1
        self.plan = replace(self.plan, capacities=(*self.plan.capacities[:planned], capacity))
        self._layouts = [*self._layouts[:planned], SlotLayout(planned, capacity, schema)]

    def _halved(self, rows: Rows) -> list[Rows]:
        """Returns parts of rows that each fit a bucket."""
        if self.bucket_of(rows) is not None:
            return [rows]
        graphs = rows.real.graphs
        if graphs < 2:
            raise self.refused(rows)
        half = graphs // 2
        return [*self._halved(rows.part(0, half)), *self._halved(rows.part(half, graphs))]

    def _too_large(self, counts: str) -> GraphTooLarge:
        last = self.plan.capacities[-1]
        names = ("nodes", "edges", *(name for name, _ in last.extra))
        each = zip((*last.size_limits, last.graph_limit), (*names, "graphs"), strict=True)
        limits = ", ".join(f"{limit:,} {name}" for limit, name in each)
        return GraphTooLarge(
            f"a batch of {counts} fits no bucket; the largest takes {limits}: plan "
            "for batches drawn at random, sg.plan_stream(graphs, batch_size=...), or pass "
            "overflow='split' or, outside of worker processes, 'grow' to the padder"
        )

    def _rounded(self, rows: int) -> int:
        needed = int(rows * self._headroom) + 1
        return -(-needed // self._multiple) * self._multiple


def _with_sorted_edges(schema: Schema | None, plan: BucketPlan) -> Schema | None:
    """Returns the fields of a batch whose edges are sorted; None where they are not known yet."""
    if schema is None:
        graphs = plan.source()
        if not isinstance(graphs, list):
            return None
        schema = learn(graphs)
    if schema.names:
        raise ValueError(
            "sort_edges=True sorts the edges of PyG's graphs, and schema= is of another class: "
            "leave sort_edges out, or sort them by destination before the batch is padded"
        )
    return replace(schema, keep_order=False)


def unplanned_layout(real: RealCounts, planned: Capacity, schema: Schema) -> SlotLayout:
    """Returns the layout of a batch at its own size.

    Args:
        real: its rows.
        planned: the largest bucket. The layout has at least as many rows of graphs, which have
            flags of losses, and is of graphs of one size if the bucket is.
        schema: its fields.
    """
    extra = {name: count + 1 for name, count in real.extra}
    graphs = max(real.graphs + 1, planned.graphs)
    nodes = max(real.nodes + 1, planned.nodes_each * graphs)
    largest = max(real.largest, planned.nodes_each)
    capacity = Capacity.distinct(nodes, real.edges, graphs, largest, extra)
    capacity = in_form_of(with_reserves(capacity, schema), planned)
    return SlotLayout(UNPLANNED, capacity, schema)


def _as_required(capacity: Capacity, schema: Schema) -> Capacity:
    """Adds the reserves and the further components of the fields to a capacity without them."""
    missing = [axis.name for axis in schema.axes if axis.name not in dict(capacity.extra)]
    if missing:
        raise ValueError(
            f"the plan has no rows of {missing[0]!r}, which the batches have: a store counts "
            "them, plan_stream(sg.GraphStore.from_pyg(graphs, keep_order=True), ...); or name them "
            f"in the plan, Capacity(..., extra={{{missing[0]!r}: rows}}) or plan_stream(sizes, "
            f"components=('nodes', 'edges', {missing[0]!r}))"
        )
    done = capacity.edge_reserve >= schema.counts_edges
    if not schema.hetero and done and capacity.node_reserve > schema.has_vectors:
        return with_pairs(capacity, schema)
    each, rest = divmod(capacity.nodes, capacity.graphs)
    padded = with_reserves(capacity, schema)
    if schema.hetero or rest or each < 2:
        return padded
    # Perhaps of graphs of one size, x.view(-1, each, F): a padding graph's nodes are the reserve.
    most = min(capacity.max_graph_nodes, capacity.nodes - padded.node_reserve)
    return replace(of_equal_graphs(padded, each), max_graph_nodes=most)
