"""A transform at collation: PyG's own transforms run on the flat arrays of real rows, with fresh
draws for each batch, the same with any number of workers and after a resume."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.transforms as T
from support.alike import real_ids, same
from support.graphs import drawn_graphs
from torch_geometric.data import Batch, Data

import staticgraph as sg


def graphs() -> list[Data]:
    fields = {"pos": ("node", 3), "sign": ("node", 2), "y": ("graph",)}
    return drawn_graphs((2 + number % 4 for number in range(12)), **fields)


def loader(transform, **options) -> sg.StaticLoader:
    store = sg.GraphStore.from_pyg(graphs())
    plan = sg.plan_buckets(store, batch_size=4)
    return sg.StaticLoader(store, plan, shuffle=True, seed=1, transform=transform, **options)


def flips(data: Data) -> Data:
    """Sign flips of eigenvectors, drawn per graph."""
    sign = torch.randint(0, 2, (len(data.ptr) - 1, 2)) * 2 - 1
    data.sign = data.sign * sign[data.batch]
    return data


def batches(loader) -> list[dict[str, torch.Tensor]]:
    return [{name: value.clone() for name, value in batch} for batch in loader]


def test_what_it_gives_is_what_it_gives_on_pygs_batch():
    def scaled(data):
        data.pos *= 2
        data.y = data.y + data.pos.new_zeros(len(data.y)).index_add(0, data.batch, data.pos[:, 0])

    found = loader(scaled)
    for batch in found:
        ids = real_ids(batch)
        data = Batch.from_data_list([graphs()[i] for i in ids])
        scaled(data)
        assert torch.equal(batch.pos[: batch.real_nodes], data.pos)
        torch.testing.assert_close(batch.y[: batch.real_graphs], data.y, rtol=0, atol=1e-12)
        assert torch.equal(batch.sign[: batch.real_nodes], data.sign)
        before = graphs()[ids[-1]].y
        assert (batch.y[batch.real_graphs :] == before).all(), "padding is as it was"


def clean_target(data):
    """Denoising: the field that keeps the original positions is the same tensor."""
    data.first = data.pos
    data.pos = data.pos + 1.0


def swapped(data):
    data.pos, data.first = data.first, data.pos


def turned(data):
    data.frame = data.frame.transpose(1, 2)


@pytest.mark.parametrize("transform", [clean_target, swapped, turned])
def test_views_of_fields_that_are_written_to_keep_what_was_there(transform):
    made = graphs()
    for number, graph in enumerate(made):
        graph.first = graph.pos * 0.0
        graph.frame = torch.arange(9.0).view(1, 3, 3) + number
    store = sg.GraphStore.from_pyg(made)
    plan = sg.plan_buckets(store, batch_size=4)
    for batch in sg.StaticLoader(store, plan, transform=transform):
        data = Batch.from_data_list([made[i] for i in real_ids(batch)])
        transform(data)
        assert torch.equal(batch.pos[: batch.real_nodes], data.pos)
        assert torch.equal(batch.first[: batch.real_nodes], data.first)
        assert torch.equal(batch.frame[: batch.real_graphs], data.frame)


@pytest.mark.parametrize(
    "transform", [flips, T.RandomJitter(0.1), T.RandomRotate(90), T.RandomFlip(0)]
)
def test_draws_do_not_depend_on_workers_or_on_what_was_drawn_before(transform):
    first = batches(loader(transform))
    torch.rand(7)
    assert same(first, batches(loader(transform, num_workers=2)))
    resumed = loader(transform)
    stream = iter(resumed)
    next(stream)
    state = resumed.state_dict()
    del stream
    later = loader(transform)
    later.load_state_dict(state)
    assert same(first[1:], batches(later))


def test_every_epoch_draws_anew_and_the_process_does_not_notice():
    looped = loader(flips, indices=range(4))
    torch.manual_seed(3)
    before = torch.rand(1)
    torch.manual_seed(3)
    signs = []
    for _ in range(8):
        (batch,) = batches(looped)
        order = batch["graph_ids"].argsort()[-4:]
        firsts = batch["sign"][batch["ptr"][order]]
        signs.append(tuple(firsts.sign().flatten().tolist()))
    assert len(set(signs)) > 1
    assert torch.equal(torch.rand(1), before)


def other_edges(data):
    data.edge_index = data.edge_index[:, :1]


def written_edges(data):
    data.edge_index[0] = data.edge_index[1]


def other_shape(data):
    data.pos = data.pos[:, :2]


def other_dtype(data):
    data.pos = data.pos.float()


@pytest.mark.parametrize(
    ("transform", "match"),
    [
        (other_edges, "transform= exchanged 'edge_index'"),
        (written_edges, "transform= exchanged 'edge_index', or wrote to it"),
        (other_shape, r"transform= made \[\d+, 2\] torch.float64 of 'pos'"),
        (T.ToSparseTensor(layout=torch.sparse_csr), "transform= exchanged 'edge_index'"),
        (other_dtype, r"transform= made .* torch.float32 of 'pos'"),
    ],
)
def test_what_has_no_place_in_a_batch_is_refused(transform, match):
    batches = loader(transform)
    for _ in range(6):  # the slot is returned each time
        with pytest.raises(ValueError, match=match):
            next(iter(batches))


@pytest.mark.parametrize(
    "transform",
    [T.Center(), T.NormalizeScale(), T.NormalizeFeatures(["pos"]), T.Cartesian(), T.Distance()],
)
@pytest.mark.parametrize("inside", [False, True])
def test_pygs_transforms_of_a_whole_graph_are_refused(transform, inside):
    """They treat a batch as one graph and would silently give other numbers."""
    given = T.Compose([T.RandomJitter(0.1), transform]) if inside else transform
    with pytest.raises(ValueError, match=rf"has {type(transform).__name__}, which looks at a whol"):
        loader(given)


def test_pygs_transforms_of_each_edge_are_taken():
    made = graphs()
    for graph in made:
        graph.edge_attr = torch.zeros(graph.num_edges, 3).double()
    store = sg.GraphStore.from_pyg(made, levels={"edge_attr": "edge"})
    transform = T.Cartesian(norm=False, cat=False)
    plan = sg.plan_buckets(store, batch_size=4)
    for batch in sg.StaticLoader(store, plan, transform=transform):
        own = [transform(each) for each in batch.clone().to_data_list()]
        assert torch.equal(batch.edge_attr[batch.edge_mask], torch.cat([g.edge_attr for g in own]))


def test_batches_made_on_a_device_have_none():
    store = sg.GraphStore.from_pyg(graphs())
    plan = sg.plan_buckets(store, batch_size=4)
    with pytest.raises(ValueError, match=r"transform= changes batches that the host fills"):
        sg.StaticLoader(store.to("cpu"), plan, transform=flips)
