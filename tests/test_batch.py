"""Padding: graphs come back unchanged, masks are right, and no fill leaves old values in a slot."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from fuzz.loading import check_batch
from hypothesis import given
from hypothesis import strategies as st
from support.alike import real_ids
from support.drawn import examples
from support.graphs import assert_same_graph, by_destination, graph_lists
from torch_geometric.data import Batch, Data, HeteroData

import staticgraph as sg
from staticgraph.batches.batch.real_batch import RealBatch
from staticgraph.batches.collation.collate import fill
from staticgraph.batches.slots.slots import SlotLayout

LEVELS = {"y": "graph", "stress": "graph", "edge_attr": "edge", "edge_weight": "edge"}


def store_of(graphs):
    return sg.GraphStore.from_pyg(graphs, levels=LEVELS)


CAPACITY = sg.Capacity.distinct(nodes=60, edges=90, graphs=12)


@given(graph_lists())
@examples(60)
def test_unpad_of_pad_is_the_graph(graphs):
    store = store_of(graphs)
    batch = sg.StaticBatch.of(store, range(len(graphs)), CAPACITY)
    for found, expected in zip(batch.to_data_list(), graphs, strict=True):
        assert_same_graph(found, by_destination(expected))


@given(graph_lists())
@examples(60)
def test_real_rows_are_those_of_a_pyg_batch_and_padding_belongs_to_padding(graphs):
    batch = sg.StaticBatch.of(store_of(graphs), range(len(graphs)), CAPACITY)
    assert check_batch(batch, [by_destination(g) for g in graphs]) == list(range(len(graphs)))
    nodes = sum(graph.num_nodes for graph in graphs)
    edges = sum(graph.num_edges for graph in graphs)
    assert int(batch.node_mask.sum()) == int(batch.num_real_nodes) == nodes == batch.real.nodes
    assert int(batch.edge_mask.sum()) == int(batch.num_real_edges) == edges == batch.real.edges
    assert int(batch.graph_mask.sum()) == int(batch.num_real_graphs) == len(graphs)
    of_padding = batch.batch[~batch.node_mask] - len(graphs)
    per_graph = torch.bincount(of_padding, minlength=CAPACITY.graphs - len(graphs))
    assert int(per_graph.max() - per_graph.min()) <= 1, "padding nodes are not spread evenly"
    source, target = batch.edge_index[:, ~batch.edge_mask]
    assert bool((source - target == 1).all()), "x has three columns: padding nodes lie apart"
    per_node = torch.bincount(target - nodes, minlength=CAPACITY.nodes - nodes)[:-1]
    assert int(per_node.max() - per_node.min()) <= 1, "padding edges are not spread evenly"
    assert torch.equal(
        batch.ptr, torch.cat([torch.zeros(1, dtype=torch.int64), _counts(batch).cumsum(0)])
    )


def _counts(batch: sg.StaticBatch) -> torch.Tensor:
    return torch.bincount(batch.batch, minlength=batch.num_graphs)


@given(graph_lists(max_size=5), graph_lists(max_size=5), st.booleans())
@examples(40)
def test_every_fill_rewrites_the_whole_slot(first, second, garbage):
    """A slot that held another batch, or garbage, ends up byte for byte like a fresh one."""
    store = store_of(first + second)
    layout = SlotLayout(0, CAPACITY, store.schema)
    used = torch.zeros(layout.nbytes, dtype=torch.uint8)
    arrays = {name: tensor.numpy() for name, tensor in layout.tensors(used).items()}
    if garbage:
        used.random_()
    else:
        fill(store, np.arange(len(first)), layout, arrays)
    later = np.arange(len(first), len(first) + len(second))
    fill(store, later, layout, arrays)
    fresh = sg.StaticBatch.of(store, later, CAPACITY)
    for name, tensor in layout.tensors(used).items():
        assert torch.equal(tensor, fresh.tensors()[name]), name


def test_a_mask_and_numbers_from_the_end_mean_what_they_mean_in_a_store(esol):
    mask = torch.zeros(len(esol), dtype=torch.bool)
    mask[[2, 5]] = True
    for which in (mask, mask.numpy(), [2, 5 - len(esol)], iter([2, 5])):
        batch = sg.StaticBatch.of(esol, which, (200, 400, 8))
        assert real_ids(batch) == [2, 5]
        assert torch.equal(batch.x[batch.node_mask], torch.cat([esol[2].x, esol[5].x]))


def test_too_much_for_a_bucket_names_the_largest_graph(esol):
    biggest = int(esol.sizes[:, 0].argmax())
    with pytest.raises(
        sg.errors.GraphTooLarge, match=rf"largest \(graph {biggest}\) 55 nodes.*takes 39"
    ):
        sg.StaticBatch.of(esol, [0, biggest], (40, 200, 5))


def test_a_full_bucket_keeps_its_reserve(esol):
    nodes, edges = esol.sizes[:4].sum(0).tolist()
    exact = sg.Capacity.distinct(nodes + 1, edges, 5)
    batch = sg.StaticBatch.of(esol, range(4), exact)
    assert int((~batch.node_mask).sum()) == 1
    assert int((~batch.graph_mask).sum()) == 1
    with pytest.raises(sg.errors.GraphTooLarge):
        sg.StaticBatch.of(esol, range(4), sg.Capacity.distinct(nodes, edges, 5))


def test_equal_capacities_are_refused():
    with pytest.raises(ValueError, match="must differ"):
        sg.Capacity(100, 100, 5)
    assert sg.Capacity.distinct(100, 100, 101) == sg.Capacity(100, 101, 102)


def test_clone_outlives_its_slot(esol):
    loader = sg.StaticLoader(esol, [(400, 900, 17)], exact=False)
    batches = [batch.clone() for batch in loader]
    seen = torch.cat([batch.graph_ids[batch.graph_mask] for batch in batches])
    assert sorted(seen.tolist()) == list(range(len(esol)))


def test_what_is_set_on_a_batch_leaves_the_memory_behind_it_alone(esol):
    loader = sg.StaticLoader(esol, [(400, 900, 17)], exact=False)
    batch = next(iter(loader))
    view = batch.replace()
    before, keys = batch.x.clone(), batch.keys()
    view.x = view.x + 1
    view["hidden"] = view.x.float()
    assert torch.equal(batch.x, before)
    assert batch.keys() == keys
    assert "hidden" not in batch
    assert torch.equal(view.x, before + 1)
    assert view.get("hidden") is view.hidden
    assert view.get("nothing") is None
    assert "hidden" in view
    assert "hidden" not in view.tensors()
    assert torch.equal(view.clone().hidden, view.hidden)
    for name in ("num_graphs", "num_real_nodes", "capacity", "device"):
        with pytest.raises(AttributeError, match="follows from its bucket"):
            setattr(view, name, 3)


def test_what_a_data_set_lacks_is_as_in_plain_pyg():
    data = [Data(x=torch.ones(2, 1), edge_index=torch.zeros(2, 1, dtype=torch.long))] * 3
    store = sg.GraphStore.from_pyg(data)
    static, plain = sg.StaticBatch.of(store, [0, 1], (9, 8, 4)), Batch.from_data_list(data)
    sg.convert(torch.nn.Identity())
    for batch in (static, RealBatch(static), plain):
        assert isinstance(batch, Batch)
        assert isinstance(batch, Data)
        for name in ("x", "edge_index", "edge_weight", "edge_attr", "y", "pos", "batch", "nothing"):
            assert hasattr(batch, name) == hasattr(plain, name), name
            assert (name in batch) == (name in plain), name
            assert (getattr(batch, name, 0) is None) == (getattr(plain, name, 0) is None), name
            assert (batch.get(name, "default") is None) == (plain.get(name, "default") is None)
        with pytest.raises(KeyError):
            batch["pos"]
    with pytest.raises(TypeError, match="not read by number"):
        static[0]
    copies = copy.deepcopy(static), copy.deepcopy(plain)
    for batch in copies:
        del batch.x
        assert batch.x is None
        assert "x" not in batch
    assert static.x is not None
    assert not isinstance(data[0], Batch)
    assert isinstance(plain, Data)
    assert not isinstance(static, HeteroData)
