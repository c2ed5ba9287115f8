"""The batches a check runs a model on: real graphs with padding of every kind, and variants.

The graphs come from the user's data if there are any; otherwise they are a few rings whose fields
have the shapes and dtypes of the plan's schema.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import field_mask, wide_mask
from staticgraph.batches.batch.static_batch import StaticBatch, first_graphs
from staticgraph.batches.padding.padder import unplanned_layout
from staticgraph.batches.padding.read_batch import graphs_of, read, stored_batch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import GraphTooLarge
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.store.columns import IndexRule
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.how_many import how_many

# A portion has one of so many graphs of a batch, and one more row of padding for so many real ones.
PORTION = 8
# A portion has at least so many graphs.
FEWEST = 8
# Graphs that are made up, and the most rows of an axis that each of them has.
RINGS, FEW = 6, 3


def batch_of(plan: BucketPlan, example: Any) -> StaticBatch:
    """Returns a batch to examine a model with: the example itself, its graphs, those that the plan
    was made for, or made-up ones.

    Raises:
        TypeError: the example has no graphs.
        ValueError: there is no example, and the plan does not know the fields.
        GraphTooLarge: no graph of the example fits a bucket.
    """
    if isinstance(example, StaticBatch):
        return example
    if example is None:
        example = graphs_of(plan)
    if example is None:
        if plan.schema is None:
            raise ValueError(
                "the plan does not say what fields a graph has: pass check(model, plan, graphs)"
            )
        example = _made_up(plan.schema, plan.capacities[0])
    elif not isinstance(example, GraphColumns):
        example = stored_batch(example, plan.schema)
    for bucket, capacity in enumerate(plan.capacities):
        if ids := _fitting(example, capacity):
            return StaticBatch.of(example, ids, capacity, bucket)
    nodes, edges = example.sizes[:4096, :2].min(axis=0)
    raise GraphTooLarge(
        "no graph of the example fits a bucket of the plan: they have at least "
        f"{how_many(nodes, 'node')} and {how_many(edges, 'edge')}, and the largest bucket is "
        f"{plan.capacities[-1]}: plan for these graphs, plan_buckets(store, ...)"
    )


def example_of(
    plan: BucketPlan,
    schema: Schema | None,
    example: GraphColumns | StaticBatch | None,
    pointers: bool = False,
) -> StaticBatch | None:
    """Returns a batch with padding for a warm-up to check; None if nothing is known of the data.

    Args:
        plan: the buckets.
        schema: the fields of the data, if known; without an example, graphs are made up from it,
            with values 0 and 1, which are valid categories everywhere and do not overflow.
        example: graphs, or a batch.
        pointers: whether the model reads row pointers.
    """
    if isinstance(example, StaticBatch):
        return example if example.real is not None or not pointers else None
    for bucket, capacity in enumerate(plan.capacities):
        store = example
        if store is None:
            if schema is None:
                return None
            store = _made_up(schema, capacity)
        if ids := _fitting(store, capacity):
            batch = StaticBatch.of(store, ids, capacity, bucket, pointers)
            return _zeros_and_ones(batch) if example is None else batch
    return None


def _zeros_and_ones(batch: StaticBatch) -> StaticBatch:
    """Returns the batch with 1 for positive values in its float fields, and 0 for all others."""
    return batch.replace(
        **{
            field.name: (batch[field.name] > 0).to(batch[field.name].dtype)
            for field in batch.layout.schema
            if not field.is_index and batch[field.name].is_floating_point()
        }
    )


def _fitting(store: GraphColumns, capacity: Capacity) -> list[int]:
    """The first graphs of a store that together leave some padding of every kind.

    This includes padding in a dense block of nodes, so graphs as large as the largest are left out
    if there are others. If any graph fills the bucket (batches of one, all of one size), only the
    padding of the bucket's reserve is left.

    Raises:
        PlanMismatch: the capacity has other kinds of rows than the store.
    """
    SlotLayout(0, capacity, store.schema)  # names the rows that the capacity lacks
    widest, fallback = capacity.max_graph_nodes, []
    for bound, full in ((widest, False), (widest + 1, False), (widest + 1, True)):
        ids = _graphs_below(store, capacity, bound, full)
        if store.sizes[ids, 0].sum() > 1:  # a single row has no variance
            return ids
        fallback = fallback or ids
    return fallback


def _graphs_below(
    store: GraphColumns, capacity: Capacity, bound: int, full: bool = False
) -> list[int]:
    """The first graphs with fewer nodes than a bound; ``full`` lets them fill the bucket."""
    limits = np.array(capacity.size_limits)
    ids, total = [], np.zeros_like(limits)
    for graph, size in enumerate(store.sizes[:4096]):
        if len(ids) >= (capacity.graph_limit if full else max(1, capacity.graph_limit - 1)):
            break
        after = total + size
        some_left = after[0] < limits[0] and (after[1] < limits[1] or not size[1])
        fits = (full or some_left) and (after <= limits).all()
        nodes = int(size[0])
        if fits and nodes < bound:
            ids.append(graph)
            total = after
    return ids


def _made_up(schema: Schema, capacity: Capacity) -> GraphColumns:
    """Makes a few rings with normal numbers, one of a single node, some rows of every axis that the
    capacity has room for, and random indices; where edges keep their order, with these in pairs."""
    random, ones = np.random.default_rng(0), np.ones(RINGS, np.int64)
    nodes = random.integers(2, 8, RINGS).clip(max=max(1, capacity.max_graph_nodes))
    nodes[-1] = 1
    edges = np.where((nodes > 1) & (capacity.edge_limit > 0), nodes, 0)
    counts = {"graph": ones, "node": nodes, "edge": edges * (1 + schema.keep_order)}
    for axis in schema.axes:
        room = (capacity.rows(axis.name) - 1) // FEW
        counts[axis.name] = ones * min(FEW - schema.keep_order, room)
    for field in schema:
        for level in filter(None, field.counts):
            counts[field.level] = np.where(counts[level] > 0, counts[field.level], 0)
    fields, rules = {}, {}
    for field in schema:
        owner = np.repeat(np.arange(RINGS), counts[field.level] * field.rows)
        drawn = random.standard_normal((len(owner), field.width))
        if field.counts:
            levels = field.counts * (field.width if len(field.counts) == 1 else 1)
            most = np.stack([counts[level] if level else ones for level in levels], axis=1)
            drawn = random.integers(0, most[owner])
        elif not field.dtype.startswith("float"):
            drawn = np.zeros_like(drawn)
        shaped = drawn.reshape(len(owner), *field.shape).astype(field.dtype)
        fields[field.name] = field.level, shaped
        rules[field.name] = IndexRule(field.cat_dim, field.counts)
    nodes, edges = counts["node"], counts["edge"]
    if schema.hetero:
        nodes = sum((counts[axis.name] for axis in schema.node_axes), 0 * ones)
        edges = sum((counts[axis.name] for axis in schema.edge_axes), 0 * ones)
    place = np.concatenate([np.arange(count) for count in edges])
    ends = np.zeros_like(place), np.zeros_like(place)
    if schema.one_kind:
        ring = np.repeat(nodes, edges)
        first, back = place // (1 + schema.keep_order), place % (1 + schema.keep_order) == 1
        ends = (first + back) % ring, (first + ~back) % ring
    columns = GraphColumns.from_arrays(
        nodes,
        edges,
        *ends,
        fields,
        rows={field.name: field.rows for field in schema if field.level == "graph"},
        axes={axis: counts[axis.name] for axis in schema.axes},
        rules=rules,
        name="made up",
    )
    return columns.in_first_order() if schema.keep_order else columns


def revalued(batch: StaticBatch, whole_rows: bool = False) -> StaticBatch:
    """Returns the batch with other values in every padding row, within the range of real rows.

    A column of a float field gets values between its smallest and largest, mostly near these;
    categories, whether integers or whole floats, get those of other real rows. A model that looks
    them up in a table, or takes an exponential, then meets nothing that real rows do not contain.
    With ``whole_rows`` each padding row is a real one: what is finite there is finite here.
    """
    random = torch.Generator().manual_seed(0)
    tensors = {}
    for field in batch.layout.schema:
        if field.is_index:  # its padding must refer to padding
            continue
        value = batch[field.name]
        if not value.numel():
            continue
        mask = field_mask(batch, field)
        if field.rows > 1:  # all rows of a graph are one: a cell keeps its three vectors
            value, mask = value.view(-1, field.rows, *value.shape[1:]), mask[:: field.rows]
        real = value[mask]
        if not len(real):
            continue
        drawn = torch.rand(value.shape, generator=random, dtype=torch.float64).to(value.device)
        if whole_rows:  # in turn, so that neighbours are not the same row
            turns = torch.arange(len(value), device=value.device) % len(real)
            other = torch.nan_to_num(real)[turns]
        elif value.is_floating_point() and not _whole(real):
            least = torch.nan_to_num(real, nan=torch.inf, neginf=torch.inf).amin(0).double()
            largest = torch.nan_to_num(real, nan=-torch.inf, posinf=-torch.inf).amax(0).double()
            far = (2 * drawn - 1).sign() * (2 * drawn - 1).abs().sqrt() / 2 + 0.5
            other = torch.nan_to_num(least + (largest - least) * far, 0.0, 0.0, 0.0)
        else:
            rows = drawn.view(len(value), -1)[:, 0] * len(real)
            other = torch.nan_to_num(real)[rows.long().clamp(max=len(real) - 1)]
        wide = wide_mask(mask, value)
        value = torch.where(wide, value, other.to(value.dtype))
        tensors[field.name] = value.view_as(batch[field.name])
    return batch.replace(**tensors)


def with_gaps(batch: StaticBatch) -> StaticBatch | None:
    """Returns the batch with a missing value (NaN) in its first real row.

    It is set in each float field of which the dataset has some; None if the batch already has one
    in each, so that nothing would be new.
    """
    tensors = {}
    for field in batch.layout.schema:
        value = batch[field.name]
        if not field.has_nan or not value.is_floating_point() or not value.numel():
            continue
        real = torch.where(batch[f"{field.level}_mask"])[0]
        first = real[:1] * field.rows
        if len(real) and not bool(torch.isnan(value).any()):
            tensors[field.name] = value.index_fill(0, first, torch.nan)
    return batch.replace(**tensors) if tensors else None


def portion_of(batch: StaticBatch) -> StaticBatch | None:
    """Returns the first graphs of a batch, an eighth of them, at their own size, with padding.

    There are more padding graphs than padding nodes, so that some have one node and some have none.
    None if the counts of the batch are not known, or its graphs cannot be read one by one.
    """
    real, schema = batch.real, batch.layout.schema
    if real is None:
        return None
    try:
        rows = read(first_graphs(batch, max(FEWEST, real.graphs // PORTION)), schema)
        spare = min(rows.real.nodes // PORTION + 1, FEWEST)
        counts = rows.real._replace(
            nodes=rows.real.nodes + spare,
            edges=_with_padding(rows.real.edges),
            graphs=rows.real.graphs + spare + 1,  # and one that vectors reserve
            extra=tuple((name, _with_padding(count)) for name, count in rows.real.extra),
        )
        return rows.padded(unplanned_layout(counts, batch.capacity, schema)).to(batch.device)
    except (TypeError, ValueError):  # of a class with rules that a list of graphs does not follow
        return None


def _with_padding(rows: int) -> int:
    return rows + rows // PORTION + 1


def _whole(value: Tensor) -> bool:
    finite = value[torch.isfinite(value)]
    return bool((finite == finite.round()).all())
