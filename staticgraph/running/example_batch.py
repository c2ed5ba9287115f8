"""What a preflight runs a model on: a real batch with padding of every kind, and the same poisoned.

Graphs of the user's data where there are any; without, a few rings whose fields have the shapes and
dtypes of the plan's schema.
"""

from __future__ import annotations

import numpy as np
import torch

from staticgraph.batch import StaticBatch
from staticgraph.plan import BucketPlan
from staticgraph.schema import Schema
from staticgraph.sizes import Capacity
from staticgraph.store import GraphStore

# Large beside any feature, and its square is far from overflow in float32.
GARBAGE = 1000.0


def batch_of(plan: BucketPlan, example: GraphStore | StaticBatch | None) -> StaticBatch:
    if isinstance(example, StaticBatch):
        return example
    if example is None:
        if plan.schema is None:
            raise ValueError(
                "the plan does not say what fields a graph has: pass preflight(model, plan, store)"
            )
        example = _made_up(plan.schema, plan.capacities[0])
    bucket, capacity = next(
        ((b, c) for b, c in enumerate(plan.capacities) if _fitting(example, c)),
        (0, plan.capacities[0]),
    )
    return StaticBatch.of(example, _fitting(example, capacity), capacity, bucket)


def _fitting(store: GraphStore, capacity: Capacity) -> list[int]:
    """The first graphs of a store that together leave some padding of every kind."""
    ids, nodes, edges = [], 0, 0
    taken: list[int] = []
    for graph, (n, e) in enumerate(store.sizes[:4096].tolist()):
        if len(ids) + 2 >= capacity.graphs:
            break
        fits = nodes + n < capacity.node_limit and edges + e < capacity.edge_limit
        if fits and n <= capacity.max_graph_nodes and capacity.ranks_hold([*taken, n]):
            ids.append(graph)
            taken.append(n)
            nodes, edges = nodes + n, edges + e
    return ids


def _made_up(schema: Schema, capacity: Capacity) -> GraphStore:
    """A few rings with normal numbers, one of a single node."""
    random = np.random.default_rng(0)
    sizes = [1, *random.integers(2, max(3, min(8, capacity.max_graph_nodes + 1)), 5)]
    nodes = np.array([min(n, capacity.max_graph_nodes) for n in sizes], dtype=np.int64)
    edges = np.where(nodes > 1, nodes, 0)
    source = np.concatenate([np.arange(e) for e in edges]).astype(np.int64)
    target = np.concatenate([(np.arange(e) + 1) % max(1, e) for e in edges]).astype(np.int64)
    counts = {"node": nodes.sum(), "edge": edges.sum(), "graph": len(nodes)}
    fields = {}
    for field in schema:
        shape = (counts[field.level] * field.rows, *field.shape)
        numbers = field.dtype.startswith("float")
        made = random.standard_normal(shape) if numbers else np.zeros(shape)
        fields[field.name] = (field.level, made.astype(field.dtype))
    rows = {field.name: field.rows for field in schema if field.level == "graph"}
    return GraphStore.from_arrays(nodes, edges, source, target, fields, rows=rows, name="made up")


def poisoned(batch: StaticBatch) -> StaticBatch:
    """The batch with garbage in every padding row, for integers the values of real rows."""
    random = torch.Generator().manual_seed(0)
    tensors = {}
    for field in batch.layout.schema:
        value = batch[field.name]
        mask = batch[f"{field.level}_mask"]
        if field.rows > 1:
            mask = mask.repeat_interleave(field.rows)
        if value.is_floating_point():
            garbage = torch.randn(value.shape, generator=random) * GARBAGE
        else:  # other rows' values: a table looked up with them has an entry for each
            real = torch.where(mask)[0]
            drawn = torch.randint(0, max(1, len(real)), (len(value),), generator=random)
            garbage = value[real[drawn.to(real.device)]] if len(real) else value
        wide = mask.view(-1, *(1,) * (value.dim() - 1))
        tensors[field.name] = torch.where(wide, value, garbage.to(value))
    return batch.replace(**tensors)
