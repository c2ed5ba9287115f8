"""The attributes of PyG's loaders and batches that training loops use."""

from __future__ import annotations

import pytest
import torch
from support.alike import real_ids
from torch_geometric.data import Batch, Data

import staticgraph as sg


def graphs(count: int = 20) -> list[Data]:
    made = []
    for number in range(count):
        n = 1 + number % 5
        e = number % 4 + 2
        made.append(
            Data(
                x=torch.full((n, 2), float(number)),
                edge_index=torch.randint(n, (2, e), generator=torch.Generator().manual_seed(e)),
                edge_attr=torch.ones(e, 1),
                y=torch.tensor([float(number)]),
                three=torch.ones(3, 2) * number,
            )
        )
    return made


@pytest.fixture
def store() -> sg.GraphStore:
    return sg.GraphStore.from_pyg(graphs(), levels={"three": "graph"})


def test_a_loader_tells_how_many_graphs_it_has(store):
    plan = sg.plan_buckets(store, batch_size=4)
    whole = sg.StaticLoader(store, plan)
    assert len(whole.dataset) == whole.num_graphs == 20
    part = sg.StaticLoader(store, plan, indices=[3, 5, 8], shuffle=True)
    assert len(part.dataset) == part.num_graphs == 3
    assert [int(data.y) for data in part.dataset] == [3, 5, 8]
    assert int(part.dataset[-1].y) == 8
    moved = sg.StaticLoader(store.to("cpu"), plan)
    assert int(moved.dataset[7].y) == 7
    with pytest.raises(IndexError):
        part.dataset[3]


def test_real_counts_are_numbers_on_the_host(store):
    batch = sg.StaticBatch.of(store, [1, 2, 3], (40, 60, 8))
    assert (batch.real_graphs, batch.real_nodes) == (3, 9)
    assert type(batch.real_graphs) is int
    assert batch.real_edges == int(batch.num_real_edges)
    inside = sg.StaticBatch(batch.layout, batch.tensors())
    with pytest.raises(RuntimeError, match=r"use the masks, or batch\.num_real_graphs"):
        _ = inside.real_graphs


def test_follow_batch_is_pygs(store):
    names = ["x", "edge_attr", "y", "three"]
    plan = sg.plan_buckets(store, batch_size=6)
    for batch in sg.StaticLoader(store, plan, follow_batch=names, shuffle=True):
        ids = real_ids(batch)
        expected = Batch.from_data_list(store[ids], follow_batch=names)
        for name in names:
            rows = len(expected[f"{name}_batch"])
            owner, ptr = batch[f"{name}_batch"], batch[f"{name}_ptr"]
            assert owner.shape == batch[name].shape[:1]
            assert torch.equal(owner[:rows], expected[f"{name}_batch"]), name
            assert torch.equal(ptr[: len(ids) + 1], expected[f"{name}_ptr"]), name
            assert not batch.graph_mask[owner[rows:]].any(), "padding belongs to padding"
            assert len(ptr) == batch.num_graphs + 1
            assert ptr[-1] == len(owner)
    with pytest.raises(ValueError, match=r"follow_batch=.*no field 'z'; there are x, edge_attr"):
        sg.StaticLoader(store, plan, follow_batch=["z"])


def test_a_model_may_ask_for_it_by_name(store):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(1, 1)

        def forward(self, edge_attr, edge_attr_batch, num_graphs):
            out = edge_attr.new_zeros(num_graphs, 1)
            return self.lin(out.index_add(0, edge_attr_batch, edge_attr))

    model = Net()
    plan = sg.plan_buckets(store, batch_size=6)
    assert sg.check(model, plan, store).ok
    found = sg.StaticGraphRunner(model, plan, mode="eager").predict(store[:5])
    edges = torch.tensor([[float(store[i].num_edges)] for i in range(5)])
    torch.testing.assert_close(found, model.lin(edges))
