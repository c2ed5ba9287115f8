"""Static hops: nothing lost, padding inert, layers equal PyG on the same sample, one compile."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hop_samples import edge_list, reference, roomy, sampled, simple_edges
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from staticgraph.outofcore.disk.neighbours import Neighbours
from staticgraph.outofcore.sampling.dense import DenseSampler
from staticgraph.outofcore.sampling.hop_profile import profile
from staticgraph.outofcore.sampling.hops import HopBatch, HopCapacity, HopLadder, exact_capacity
from staticgraph.outofcore.training.layers import (
    LAYERS,
    SampledGAT,
    SampledGCN,
    SampledGNN,
    SampledSAGE,
)

# ---------------------------------------------------------------------- padding


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 20), edges=st.integers(0, 80), extra=st.integers(0, 4),
    fanouts=st.lists(st.integers(1, 4), min_size=1, max_size=3), seed=st.integers(0, 999),
)  # fmt: skip
def test_every_node_and_edge_of_a_sample_is_in_its_batch_once(rows, edges, extra, fanouts, seed):
    sampler, seeds, sample = sampled(rows, edges, fanouts, max(1, rows // 3), seed)
    batch = HopBatch(roomy(sample, extra), 0)
    # As if the slot had held another sample before.
    for tensor in (batch.rows, batch.degree, batch.whole, batch.mask, *batch.draws):
        tensor.fill_(1)
    batch.fill(sample, sampler.neighbours.degrees())
    real = batch.rows[batch.mask].numpy()
    assert sorted(real) == sorted(sample.nodes)
    np.testing.assert_array_equal(batch.rows[: len(seeds)], seeds)
    np.testing.assert_array_equal(
        batch.degree[batch.mask], sampler.neighbours.degrees()[real].astype(np.float32)
    )
    found = []
    for start, drawn in zip(batch.capacity.starts, batch.draws, strict=False):
        for i, row in enumerate(drawn.tolist()):
            found += [(int(batch.rows[p - 1]), int(batch.rows[start + i])) for p in row if p]
            assert batch.mask[start + i] or not any(row)
            assert all(batch.mask[p - 1] for p in row if p)
    expected = [(int(sample.nodes[a]), int(sample.nodes[b])) for a, b in edge_list(sample).T]
    assert sorted(found) == sorted(expected)


def test_a_sample_that_does_not_fit_is_refused():
    sampler, _, sample = sampled()
    exact = exact_capacity(sample)
    small = HopCapacity((exact.nodes[0], exact.nodes[1] - 1, exact.nodes[2]), exact.widths)
    with pytest.raises(ValueError, match="next rung"):
        HopBatch(small, 0).fill(sample, sampler.neighbours.degrees())


# ---------------------------------------------------------------------- layers against PyG


def gradients(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("garbage", [0.0, 1e3])
@pytest.mark.parametrize("fanouts", [(3,), (3, 4), (2, 3, 2)])
def test_layers_equal_pyg_on_the_same_sample_forward_and_backward(kind, garbage, fanouts):
    sampler, seeds, sample = sampled(40, 200, fanouts, 6, seed=2)
    degrees = sampler.neighbours.degrees()
    torch.manual_seed(0)
    model = SampledGNN(kind, 5, 8, 3, len(fanouts)).double()
    features = torch.randn(40, 5, dtype=torch.float64)
    batch = HopBatch(roomy(sample), 0).fill(sample, degrees)
    x = features[batch.rows]
    # The padding may hold any finite values.
    x[~batch.mask] = garbage
    x.requires_grad_()
    weights = torch.randn(len(seeds), 3, dtype=torch.float64)
    out = model(x, batch)[: len(seeds)]
    found = gradients((out * weights).sum(), model)
    by_x = torch.autograd.grad((model(x, batch)[: len(seeds)] * weights).sum(), x)[0]

    unpadded = features[sample.nodes].requires_grad_()
    hidden = unpadded
    for number, layer in enumerate(model.layers):
        hidden = reference(layer, hidden.relu() if number else hidden, sample, degrees)
    expected = hidden[: len(seeds)]
    loss = (expected * weights).sum()
    torch.testing.assert_close(out, expected)
    for now, then in zip(found, gradients(loss, model), strict=True):
        torch.testing.assert_close(now, then)
    # A second forward, for the gradient of the inputs.
    hidden = unpadded
    for number, layer in enumerate(model.layers):
        hidden = reference(layer, hidden.relu() if number else hidden, sample, degrees)
    expected_x = torch.autograd.grad((hidden[: len(seeds)] * weights).sum(), unpadded)[0]
    order = np.concatenate(
        [
            start + np.arange(n)
            for start, n in zip(batch.capacity.starts, sample.counts, strict=False)
        ]
    )
    torch.testing.assert_close(by_x[order], expected_x)
    assert (by_x[~batch.mask] == 0).all()


@pytest.mark.parametrize("kind", LAYERS)
def test_full_fan_out_equals_the_whole_graph(kind):
    rows = 40
    ends = simple_edges(rows, 160, 3)
    neighbours = Neighbours.of(*ends, rows)
    sampler = DenseSampler(neighbours, [int(neighbours.degrees().max())] * 2)
    sample = sampler.sample(np.arange(rows), 0)
    model = SampledGNN(kind, 4, 8, 3, 2).double()
    x = torch.randn(rows, 4, dtype=torch.float64)
    batch = HopBatch(exact_capacity(sample), None).fill(sample, neighbours.degrees())
    edges = torch.from_numpy(ends)
    torch.testing.assert_close(model(x[batch.rows], batch), model.whole(x, edges))
    if kind == "gcn":
        conv = GCNConv(4, 8).double()
        conv.load_state_dict(model.layers[0].state_dict())
        torch.testing.assert_close(conv(x, edges), model.layers[0].whole(x, edges))


def test_gcn_over_a_part_is_the_mean_of_what_is_resident_with_degrees_of_the_whole():
    """By loops: mean of sqrt((1 + d_i) / (1 + d_j)) x_j over the resident closed neighbourhood."""
    rows, resident = 30, 18
    ends = simple_edges(rows, 140, 4)
    whole = np.bincount(ends[1], minlength=rows)
    inside = ends[:, (ends < resident).all(axis=0)]
    neighbours = Neighbours.of(*inside, resident)
    degrees = neighbours.degrees()
    assert (degrees < whole[:resident]).any()
    sampler = DenseSampler(neighbours, [int(degrees.max())])
    sample = sampler.sample(np.arange(resident), 0)
    batch = HopBatch(roomy(sample), 0).fill(sample, degrees, whole[:resident])
    layer = SampledGCN(4, 3).double()
    x = torch.randn(resident, 4, dtype=torch.float64)
    found = layer(x[batch.rows], batch, 1)[:resident]
    for i in range(resident):
        closed = [i, *inside[0, inside[1] == i].tolist()]
        parts = [np.sqrt((1 + whole[i]) / (1 + whole[j])) * layer.lin(x[j]) for j in closed]
        torch.testing.assert_close(found[i], sum(parts) / len(parts) + layer.bias)


def test_parameters_pass_to_pyg_and_back():
    for ours, theirs in [
        (SampledSAGE(4, 6), SAGEConv(4, 6)),
        (SampledGCN(4, 6), GCNConv(4, 6)),
        (SampledGAT(4, 3, 2), GATConv(4, 3, heads=2)),
    ]:
        before = {name: value.clone() for name, value in ours.state_dict().items()}
        theirs.load_state_dict(ours.state_dict())
        for parameter in ours.parameters():
            parameter.data.zero_()
        ours.load_state_dict(theirs.state_dict())
        assert before.keys() == ours.state_dict().keys()
        assert all(torch.equal(value, ours.state_dict()[name]) for name, value in before.items())


def test_a_batch_of_one_isolated_seed():
    nothing = np.empty(0, np.int64)
    sampler = DenseSampler(Neighbours.of(nothing, nothing, 3), [2, 2])
    sample = sampler.sample(np.array([1]), 0)
    for kind in LAYERS:
        batch = HopBatch(exact_capacity(sample), None).fill(sample, sampler.neighbours.degrees())
        out = SampledGNN(kind, 4, 8, 2, 2)(torch.randn(1, 4), batch)
        assert out.shape == (1, 2)
        assert out.isfinite().all()


# ---------------------------------------------------------------------- the ladder


def test_the_first_rung_holds_400_batches_with_little_padding():
    rows = 20_000
    ends = np.random.default_rng(0).integers(0, rows, (2, 200_000))
    sampler = DenseSampler(Neighbours.of(*ends, rows), [10, 5])
    ladder = profile(sampler, np.arange(rows), 256)
    rng = np.random.default_rng(1)
    for number in range(400):
        ladder.fit(sampler, rng.choice(rows, 256, replace=False), number)
    statistics = ladder.statistics
    assert statistics.batches[0] == 400
    assert statistics.splits == statistics.eager == 0
    assert statistics.efficiency > 0.93


def test_overflow_climbs_then_splits_then_goes_alone_and_loses_no_seed():
    sampler, seeds, sample = sampled(30, 300, (4, 4), 8)
    counts = sample.counts
    first = HopCapacity((8, counts[1] - 1, 30), sampler.widths)
    second = HopCapacity((8, counts[1], 30), sampler.widths)
    ladder = HopLadder((first, second))
    assert [rung for *_, rung in ladder.fit(sampler, seeds, 0)] == [1]
    ladder = HopLadder((first,))
    parts = ladder.fit(sampler, seeds, 0)
    assert len(parts) > 1
    np.testing.assert_array_equal(np.concatenate([part for part, *_ in parts]), seeds)
    assert ladder.statistics.splits == len(parts) - 1
    alone = HopLadder((HopCapacity((8, 1, 1), sampler.widths),))
    parts = alone.fit(sampler, seeds, 0)
    assert len(parts) == 8
    assert alone.statistics.eager == sum(rung is None for *_, rung in parts) > 0
    for _, part, rung in parts:
        capacity = exact_capacity(part) if rung is None else alone.rungs[rung]
        HopBatch(capacity, rung).fill(part, sampler.neighbours.degrees())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HopLadder(()), "at least one rung"),
        (lambda: HopCapacity((4, 4), (2, 2)), "one more capacity"),
        (
            lambda: HopLadder((HopCapacity((4, 8), (2,)), HopCapacity((4, 6), (2,)))),
            "put the rungs in order",
        ),
        (lambda: SampledGNN("cheb", 2, 2, 2, 2), "choose one of sage, gcn, gat"),
        (lambda: SampledGNN("gat", 2, 6, 2, 2, heads=4), "multiple of heads"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_state_without_seeds_cannot_be_profiled():
    sampler, *_ = sampled()
    with pytest.raises(ValueError, match="no seeds"):
        profile(sampler, np.empty(0, np.int64), 4)


@pytest.mark.parametrize("direction", ["in", "both"])
@pytest.mark.parametrize("kind", LAYERS)
def test_loops_and_repeated_edges_are_as_pyg_has_them(kind, direction):
    rows = 25
    ends = np.random.default_rng(2).integers(0, rows, (2, 90))
    # Some nodes have two self-loops, some edges occur three times; node 24 has only a self-loop.
    ends = np.concatenate([ends[:, (ends != 24).all(axis=0)], ends[:, :20], ends[:, :9]], axis=1)
    ends = ends[:, (ends != 24).all(axis=0)]
    loops = np.array([[0, 1, 1, 24]] * 2)
    ends = np.concatenate([ends, loops], axis=1)
    neighbours = Neighbours.of(*ends, rows, direction)
    sampler = DenseSampler(neighbours, [int(neighbours.degrees().max())] * 2)
    sample = sampler.sample(np.arange(rows), 0)
    model = SampledGNN(kind, 4, 8, 3, 2).double()
    x = torch.randn(rows, 4, dtype=torch.float64)
    degrees = neighbours.degrees(loops=False)
    batch = HopBatch(exact_capacity(sample), None).fill(sample, degrees)
    both = np.concatenate([ends, ends[::-1]], axis=1) if direction == "both" else ends
    conv = {"sage": SAGEConv(4, 8), "gcn": GCNConv(4, 8), "gat": GATConv(4, 2, heads=4)}[kind]
    conv.double()
    conv.load_state_dict(model.layers[0].state_dict())
    edges = torch.from_numpy(both.copy())
    found = model.layers[0](x[batch.rows], batch, 1)[:rows]
    torch.testing.assert_close(found, conv(x, edges))
    torch.testing.assert_close(model(x[batch.rows], batch), model.whole(x, edges))
