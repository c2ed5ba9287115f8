"""predict and unpad return the structure that the model returns, each tensor split by the level of
its rows as in plain PyG; data without edges are checked like any other."""

from __future__ import annotations

import pytest
import torch
from support.graphs import double_graphs
from support.runners import made_runner
from torch_geometric.data import Batch, Data
from torch_geometric.nn import DeepSetsAggregation, PointNetConv, global_add_pool, global_max_pool
from torch_geometric.utils import to_dense_batch

import staticgraph as sg


def graphs() -> list[Data]:
    return double_graphs(3 + number % 4 for number in range(12))


class Many(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(4, 2).double()
        self.kind = kind

    def forward(self, data):
        nodes = self.lin(data.x)
        edges = nodes[data.edge_index[0]] - 2 * nodes[data.edge_index[1]]
        pooled = global_add_pool(nodes, data.batch, data.num_graphs)
        made = {"a": pooled, "b": (nodes, None, [edges]), "n": None, "k": 3.5}
        made["scale"] = self.lin.weight.sum()
        return made if self.kind is dict else self.kind(made.values())


@pytest.mark.parametrize("kind", [dict, tuple, list])
def test_nested_outputs_are_those_of_plain_pyg(kind):
    data = graphs()
    store = sg.GraphStore.from_pyg(data)
    model = Many(kind)
    runner = sg.StaticGraphRunner(model, sg.plan_buckets(store, batch_size=5), mode="eager")
    found = runner.predict(data)
    assert type(found) is kind
    a, (nodes, none, (edges,)), n, k, scale = found.values() if kind is dict else found
    assert none is None
    assert n is None
    assert k == 3.5
    assert torch.equal(scale, scale[:1].expand_as(scale))
    assert scale[0] == model.lin.weight.sum()
    for number, graph in enumerate(data):
        out = model(Batch.from_data_list([graph]))
        pooled, (of_nodes, _, (of_edges,)), *_ = out.values() if kind is dict else out
        torch.testing.assert_close(a[number], pooled[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(nodes[number], of_nodes, rtol=0, atol=1e-10)
        torch.testing.assert_close(edges[number], of_edges, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_blocks_as_wide_as_a_batch_are_a_list(mode):
    data = double_graphs(range(3, 15))
    plan = sg.plan_buckets(sg.GraphStore.from_pyg(data), batch_size=3)
    model = torch.nn.Linear(4, 2).double()

    def forward(model, batch):
        rows, mask = to_dense_batch(model(batch.x), batch.batch)
        return rows @ rows.transpose(1, 2) * mask[:, None] * mask[..., None]

    blocks = sg.StaticGraphRunner(model, plan, mode, forward=forward).predict(data)
    for graph, block in zip(data, blocks, strict=True):
        rows, n = model(graph.x), graph.num_nodes
        torch.testing.assert_close(block[:n, :n], rows @ rows.T)
        assert not block[n:].any()


def test_a_tensor_without_rows_is_named():
    store = sg.GraphStore.from_pyg(graphs())
    batch = sg.StaticBatch.of(store, range(3), (40, 61, 8))
    with pytest.raises(ValueError, match=r"'loss\.1': a tensor of shape \[396\] has no rows"):
        batch.unpad({"a": torch.ones(8), "loss": (None, torch.ones(396))})
    with pytest.raises(ValueError, match=r"^a tensor of shape \[396\] has no rows"):
        batch.unpad(torch.ones(396))


class Cloud(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = PointNetConv(local_nn=torch.nn.Linear(3, 8))

    def forward(self, data):
        return global_max_pool(self.conv(None, data.pos, data.edge_index), data.batch)


class Set(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sum = DeepSetsAggregation(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))

    def forward(self, pos, batch):
        return self.sum(pos, batch)


@pytest.mark.parametrize("model", [Cloud, Set])
def test_points_without_edges_are_looked_at(model):
    clouds = [Data(pos=torch.randn(3 + k % 4, 3), y=torch.tensor([k % 2])) for k in range(10)]
    store = sg.GraphStore.from_pyg(clouds)
    plan = sg.plan_buckets(store, batch_size=4)
    for example in (store, None):
        report = sg.check(model(), plan, example)
        assert report.ok, str(report)
        assert report.parity is not None
        assert "(0 nodes" not in report.batch


class Answers(torch.nn.Module):
    """A yes/no answer per graph, node and edge, computed with a mask among the fields."""

    def forward(self, x, edge_index, good, batch, batch_size):
        assert good.dtype == torch.bool
        kept = x[:, 0].masked_fill(~good, -1.0)
        pooled = global_add_pool(kept[:, None], batch, batch_size)
        return pooled > 0, kept > 0, kept[edge_index[0]] > 0


@pytest.mark.parametrize("sanitize", [False, True])
def test_truth_values_stay_truth_values(sanitize):
    """As integers they would index rows 0 and 1 where a mask is meant."""
    data = graphs()
    for graph in data:
        graph.good = graph.x[:, 1] > 0
    store = sg.GraphStore.from_pyg(data)
    runner = made_runner(
        Answers(), sg.plan_buckets(store, batch_size=5), mode="eager", sanitize=sanitize
    )
    pooled, nodes, edges = runner.predict(data)
    assert {each.dtype for each in (pooled, *nodes, *edges)} == {torch.bool}
    for number, graph in enumerate(data):
        kept = graph.x[:, 0].masked_fill(~graph.good, -1.0)
        assert torch.equal(pooled[number], kept.sum()[None] > 0)
        assert torch.equal(nodes[number], kept > 0)
        assert torch.equal(edges[number], kept[graph.edge_index[0]] > 0)


def test_new_graphs_say_which_edges_they_have():
    """If they were missing or misnamed, the numbers would be those of another graph."""
    data = graphs()
    store = sg.GraphStore.from_pyg(data)
    plan = sg.plan_buckets(store, batch_size=5)

    def predict(given, plan=plan):
        return sg.StaticGraphRunner(Many(tuple), plan, mode="eager").predict(given)

    misnamed = Data(x=data[0].x, edges=data[0].edge_index)
    for given in ([misnamed], [data[1], misnamed]):
        with pytest.raises(sg.BadGraph, match=f"graph {len(given) - 1} has no edge_index, which"):
            predict(given)
    none = Data(x=data[0].x, edge_index=torch.empty(2, 0, dtype=torch.long))
    assert predict([none])[1][2][0][0].shape == (0, 2)
    assert torch.equal(predict(iter(data))[0], predict(data)[0])
    with pytest.raises(sg.BadGraph, match="item 0 is a DataBatch of 3 graphs"):
        predict([Batch.from_data_list(data[:3])])
