"""Stores and batches of typed nodes, compared with PyG's own ``Batch`` on real molecules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fuzz.typed_batch import check_typed_batch
from support.alike import real_ids
from support.hetero_graphs import by_destination, from_molecule
from torch_geometric.data import Batch, Data, HeteroData

import staticgraph as sg
from staticgraph.errors import BadGraph, GraphTooLarge

COUNT = 150


@pytest.fixture(scope="module")
def molecules(esol) -> list[HeteroData]:
    single = np.flatnonzero(esol.sizes[:, 1] == 0)[:2].tolist()
    return [from_molecule(esol[i]) for i in (*range(COUNT), *single)]


@pytest.fixture(scope="module")
def store(molecules) -> sg.GraphStore:
    return sg.GraphStore.from_pyg(molecules)


def plans(store) -> dict[str, sg.BucketPlan]:
    return {
        "exact": sg.plan_buckets(store, batch_size=16),
        "packed": sg.plan_buckets(store, graphs=30),
        "several buckets": sg.plan_buckets(store, graphs=20, num_buckets=3),
    }


def assert_same(found: HeteroData, expected: HeteroData) -> None:
    assert found.metadata() == expected.metadata()
    for kind in (*expected.node_types, *expected.edge_types):
        for name, value in expected[kind].items():
            assert torch.equal(found[kind][name], value), (kind, name)
    assert torch.equal(found.y, expected.y)


def test_a_store_gives_back_what_went_in(store, molecules, tmp_path):
    store.save(tmp_path / "store")
    for kept in (store, sg.GraphStore.load(tmp_path / "store")):
        for number, graph in enumerate(molecules):
            assert_same(kept[number], graph)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["exact", "packed", "several buckets"])
def test_batches_hold_what_pyg_batches_and_padding_stays_in_padding(store, molecules, name):
    plan = plans(store)[name]
    assert len(plan.capacities) > 1 or name != "several buckets"
    loader = sg.StaticLoader(store, plan, shuffle=True)
    ordered = [by_destination(graph) for graph in molecules]
    for _ in range(2):
        seen = []
        for batch in loader:
            seen += check_typed_batch(batch, ordered)
            for kind, mask in batch.node_masks.items():
                last = batch[kind].x[mask][-1:]
                assert (batch[kind].x[~mask] == (last if len(last) else 0)).all()
        assert sorted(seen) == list(range(len(molecules)))


def test_a_batch_offers_what_pyg_does(store, molecules):
    batch = next(iter(sg.StaticLoader(store, plans(store)["exact"])))
    expected = Batch.from_data_list(molecules[:16])
    assert batch.metadata() == expected.metadata()
    for name in ("x_dict", "edge_index_dict", "batch_dict"):
        assert batch[name].keys() == getattr(expected, name).keys()
    assert batch.num_nodes_dict.keys() == expected.num_nodes_dict.keys()
    assert batch["bonded"].edge_attr is batch["atom", "bonded", "atom"].edge_attr
    assert "edge_attr" in batch["bonded"]
    with pytest.raises(AttributeError, match="'ring' has no 'charge'; it has x, mask, batch, ptr"):
        _ = batch["ring"].charge
    with pytest.raises(AttributeError, match="the batch has no 'edge_index'"):
        _ = batch.edge_index


def test_padding_nodes_of_all_types_stand_apart():
    made = HeteroData()
    made["a"].pos, made["b"].pos = torch.rand(3, 3), torch.rand(2, 3)
    made["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 1]])
    made["a", "near", "a"].edge_index = torch.tensor([[0, 1], [1, 0]])
    store = sg.GraphStore.from_pyg([made] * 4)
    extra = {"a": 9, "b": 8, "a__to__b": 20, "a__near__a": 21}
    batch = sg.StaticBatch.of(store, [0], sg.Capacity(30, 50, 4, 5, tuple(extra.items())))
    for kind in batch.edge_types:
        source, target = batch[kind].edge_index[:, ~batch.edge_masks[kind]]
        assert not batch.node_masks[kind[0]][source].any()
        apart = batch[kind[0]].pos[source] - batch[kind[2]].pos[target]
        assert (apart.norm(dim=1) > 0.1).all()


def test_a_type_that_a_graph_lacks(molecules):
    ringless = HeteroData(y=molecules[0].y)
    ringless["atom"].x, ringless["atom"].y = molecules[2]["atom"].x, molecules[2]["atom"].y
    store = sg.GraphStore.from_pyg([molecules[0], ringless])
    assert store.sizes[1].tolist() == [
        len(ringless["atom"].x),
        0,
        len(ringless["atom"].x),
        *[0] * 8,
    ]
    with pytest.raises(
        BadGraph, match="graph 1 has nodes of type 'bond', which graph 0 lacks: let"
    ):
        sg.GraphStore.from_pyg([ringless, molecules[0]])
    schema = sg.GraphStore.from_pyg(molecules[:2]).schema
    assert len(sg.GraphStore.from_pyg([ringless], schema=schema)) == 1


def changed(graph: HeteroData, **fields) -> HeteroData:
    graph = graph.clone()
    for name, value in fields.items():
        setattr(graph["atom"], name, value)
    return graph


def test_odd_graphs_are_named(molecules):
    first = molecules[0]
    with pytest.raises(BadGraph, match="item 1 of list is of type Data; expected HeteroData"):
        sg.GraphStore.from_pyg([first, Data(x=torch.ones(2, 1))])
    with pytest.raises(BadGraph, match=r"'atom.x' has 3 rows in graph 1, which has 5 of atom"):
        sg.GraphStore.from_pyg([first, changed(first, x=torch.ones(3, 9), num_nodes=5)])
    bad = first.clone()
    bad["atom", "bonded", "atom"].edge_index = bad["bonded"].edge_index + 99
    with pytest.raises(BadGraph, match=r"in 'atom__bonded__atom.edge_index', which counts 'atom'"):
        sg.GraphStore.from_pyg([first, bad])
    unsized = first.clone()
    del unsized["ring"].x
    with pytest.raises(
        BadGraph, match=r"does not say how many nodes of type 'ring'|has no 'ring.x'"
    ):
        sg.GraphStore.from_pyg([first, unsized])

    class Odd(HeteroData):
        def __inc__(self, key, value, *args, **kwargs):
            return 7 if key == "edge_index" else super().__inc__(key, value, *args, **kwargs)

    odd = Odd()
    for kind in (*first.node_types, *first.edge_types):
        for name, value in first[kind].items():
            odd[kind][name] = value
    with pytest.raises(
        BadGraph, match=r"graph 0 adds 7 to row 0 of 'atom__bonded__atom.edge_index'"
    ):
        sg.GraphStore.from_pyg([odd])


def test_too_large_a_graph_names_the_type(store):
    plan = plans(store)["exact"]
    last = plan.capacities[-1]
    small = [(n, 3 + k) for k, (n, _) in enumerate(last.extra)]
    tight = sg.BucketPlan.of(
        [sg.Capacity(900, 2000, last.graphs, last.max_graph_nodes, tuple(small))], batch_size=4
    )
    with pytest.raises(GraphTooLarge, match=r"graph 0 has 32 atom; .* larger extra\['atom'\] in a"):
        sg.StaticLoader(store, tight)
    kept = sg.StaticLoader(store, tight, oversize="bucket")
    seen = [i for batch in kept for i in real_ids(batch)]
    assert sorted(seen) == list(range(len(store)))
