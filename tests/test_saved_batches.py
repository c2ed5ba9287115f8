"""A batch that was saved, pickled or copied keeps its content, whatever its slot holds later."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph.errors import StaleBatch


def graphs_of(count):
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    return [
        Data(x=torch.randn(3, 2), edge_index=edges, y=torch.randn(1, 1), smiles=f"C{i}")
        for i in range(count)
    ]


def saved(batch):
    file = io.BytesIO()
    torch.save(batch, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "torch.save": saved,
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("pointers", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_saved_is_equal_after_the_slot_holds_other_graphs(way, pointers):
    store = sg.GraphStore.from_pyg(graphs_of(8))
    plan = sg.plan_buckets(store, batch_size=2)
    loader = sg.StaticLoader(store, plan, pointers=pointers, slots=1)
    batches = iter(loader)
    batch = next(batches)
    batch.weight = torch.arange(3.0)
    wanted = {name: tensor.clone() for name, tensor in batch.tensors().items()}
    real, names, shape = batch.real, batch.smiles, repr(batch)
    found = WAYS[way](batch)
    del batch
    other = next(batches)
    assert not other.x.equal(wanted["x"])
    assert found.tensors().keys() == wanted.keys()
    for name, tensor in found.tensors().items():
        assert tensor.equal(wanted[name]), name
        assert tensor.dtype == wanted[name].dtype, name
    assert found.real == real
    assert found.smiles == names
    assert repr(found) == shape
    assert found.weight.equal(torch.arange(3.0))
    assert [g.num_nodes for g in found.to_data_list()] == [3, 3]


@pytest.fixture
def batch():
    store = sg.GraphStore.from_pyg(graphs_of(4))
    return next(iter(sg.StaticLoader(store, sg.plan_buckets(store, batch_size=2))))


def test_a_batch_whose_slot_was_given_back_is_not_saved(batch):
    batch.release()
    with pytest.raises(StaleBatch, match="gave its slot back"):
        torch.save(batch, io.BytesIO())


def test_a_shallow_copy_stands_in_the_same_memory_and_is_set_alone(batch):
    other = copy.copy(batch)
    assert other.x.data_ptr() == batch.x.data_ptr()
    other.x = torch.zeros_like(batch.x)
    assert bool(batch.x.any())
