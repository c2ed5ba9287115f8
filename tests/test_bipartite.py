"""Bipartite graphs as in PyG's own example: ``edge_index`` leads from one kind of rows to another,
and the class says so in ``__inc__``. The oracle is PyG's ``Batch`` in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.index_rules import Bipartite, bipartite
from support.parity import call, differences, plain_step, static_step
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GATConv, GraphConv, SAGEConv, global_add_pool
from torch_geometric.utils import scatter

import staticgraph as sg
from staticgraph.errors import BadGraph


def made(count: int = 24, seed: int = 0) -> list[Data]:
    rng = np.random.default_rng(seed)
    return [bipartite(rng, int(rng.integers(1, 7))) for _ in range(count)]


class Net(torch.nn.Module):
    """Both directions, a norm over the sources, sums without given sizes, a pool over each side."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.there = SAGEConv((3, 2), 8)
        self.norm = BatchNorm(3)
        self.heads = GATConv((3, 8), 4, heads=2, edge_dim=4, add_self_loops=False)
        self.back = GraphConv((8, 3), 5)
        self.out = torch.nn.Linear(5 + 8 + 4, 1)

    def forward(self, data):
        source, target = self.norm(data.x_s), data.x_t
        edges = data.edge_index
        target = self.there((source, target), edges).relu()
        target = self.heads((source, target), edges, data.edge_attr)
        source = self.back((target, source), edges.flip(0))
        sent = scatter(data.edge_attr, edges[1], reduce="sum")
        pooled = [
            global_add_pool(source, data.x_s_batch),
            global_add_pool(target, data.x_t_batch),
            global_add_pool(sent, data.x_t_batch),
        ]
        return self.out(torch.cat(pooled, dim=-1))


def test_the_store_asks_what_the_two_rows_count():
    store = sg.GraphStore.from_pyg(made())
    field = store.schema["edge_index"]
    assert (field.level, field.counts, field.cat_dim) == ("edge", ("x_s", "x_t"), 1)
    assert store.schema["x_s"].level == "x_s"
    assert store.schema["edge_attr"].level == "edge"


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "as compiled"])
def test_outputs_and_gradients_are_those_of_plain_pyg(compiled):
    graphs = made(8)
    store = sg.GraphStore.from_pyg(graphs)
    capacity = sg.plan_buckets(store, batch_size=8).capacities[-1]
    batch = sg.StaticBatch.of(store, range(8), capacity)
    model = Net().double()
    expected = plain_step(model, call, batch, follow=("x_s", "x_t"))
    found, trace = static_step(model, call, batch, trace=compiled)
    assert trace is None or trace.static, trace
    assert differences(expected, found, 1e-10) == []


class BetweenSides(torch.nn.Module):
    """Every target attends to the sources of its own graph, without which a softmax is NaN."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, data):
        same = data.x_t_batch[:, None] == data.x_s_batch[None]
        scores = (data.x_t[:, :1] * data.x_s[:, 0]).masked_fill(~same, -torch.inf)
        return global_add_pool(self.lin(scores.softmax(1) @ data.x_s), data.x_t_batch)


def test_padding_rows_of_both_sides_are_of_the_same_graphs():
    """Few spare sources and many spare targets, over many padding graphs, as in a last batch."""
    store = sg.GraphStore.from_pyg(made(3))
    sources, targets = (int(store.offsets_of(side)[-1]) for side in ("x_s", "x_t"))
    for spare in ((2, 30), (1, 3)):
        extra = {"x_s": sources + spare[0], "x_t": targets + spare[1]}
        capacity = sg.Capacity.distinct(200, 300, 12, extra=extra)
        batch = sg.StaticBatch.of(store, range(3), capacity)
        model = BetweenSides()
        expected = plain_step(model, call, batch, follow=("x_s", "x_t"))
        found, _ = static_step(model, call, batch)
        assert differences(expected, found, 1e-12) == []
        sides = [set(ids[~mask].tolist()) for ids, mask in _sides(batch)]
        assert sides[0] == sides[1]


def _sides(batch):
    return [(batch[f"{side}_batch"], batch[f"{side}_mask"]) for side in ("x_s", "x_t")]


def test_one_compiled_graph_serves_every_batch():
    store = sg.GraphStore.from_pyg(made(12))
    plan = sg.plan_buckets(store, batch_size=4)
    report = sg.check(Net().double(), plan, store)
    assert report.ok, str(report)
    assert sg.check(Net().double(), plan).ok, "on graphs made up of the schema"


class Nothing(Data):
    def __inc__(self, key, value, *args, **kwargs):
        return 0


class Rows(Data):
    def __cat_dim__(self, key, value, *args, **kwargs):
        return 0


def test_what_edges_cannot_follow_is_refused_by_name():
    edges = {"edge_index": torch.tensor([[0, 1], [1, 0]]), "x": torch.eye(2)}
    with pytest.raises(BadGraph, match=r"graph 0 adds 0 to 'edge_index' \(__inc__\), though"):
        sg.GraphStore.from_pyg([Nothing(**edges)] * 3)
    with pytest.raises(BadGraph, match=r"graph 0 gives 0 as __cat_dim__ of 'edge_index'; edges"):
        sg.GraphStore.from_pyg([Rows(**edges)] * 3)


def test_new_graphs_must_count_as_the_plans_did():
    store = sg.GraphStore.from_pyg(made())
    others = [Data(**data.to_dict()) for data in made(3, seed=5)]
    with pytest.raises(BadGraph, match=r"adds .* to 'edge_index' .* count x_s and x_t"):
        sg.GraphStore.from_pyg(others, schema=store.schema)
    square = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), x=torch.eye(2))
    schema = sg.GraphStore.from_pyg([square] * 2).schema
    odd = Bipartite(x_s=torch.ones(4, 1), x_t=torch.ones(2, 1), **square.to_dict())
    with pytest.raises(BadGraph, match=r"graph 0 adds .* \(__inc__\), where .* count node"):
        sg.GraphStore.from_pyg([odd], schema=schema)


def test_kernels_of_square_graphs_say_that_they_cannot():
    store = sg.GraphStore.from_pyg(made())
    plan = sg.plan_buckets(store, batch_size=4)
    with pytest.raises(ValueError, match="graphs with one type of nodes"):
        sg.StaticLoader(store, plan, pointers=True)
