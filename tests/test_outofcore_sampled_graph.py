"""A sample as a static batch: nothing lost, any model equal to PyG on the same sample, buckets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from staticgraph import Capacity, StaticGraphRunner
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.outofcore import SampledGNN
from staticgraph.outofcore.sampling.dense import Neighbours
from staticgraph.outofcore.sampling.sampled_graph import (
    batch_of,
    schema_of,
    size_of,
)

KINDS = ("sage", "gcn", "gat")


def simple_edges(rows: int, edges: int, seed: int) -> np.ndarray:
    """Returns distinct edges without self-loops."""
    ends = np.random.default_rng(seed).integers(0, rows, (2, edges))
    return np.unique(ends[:, ends[0] != ends[1]], axis=1)


def edge_list(sample) -> torch.Tensor:
    """Returns the sampled edges as positions in ``sample.nodes``, from neighbour to node."""
    pairs = []
    for hop, drawn in enumerate(sample.draws):
        for i, row in enumerate(drawn):
            pairs += [(int(p), sample.hops[hop] + i) for p in row if p >= 0]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T


def padded(sample, x, degrees, whole=None, *, closed=False, extra=5):
    """Pads a sample whose nodes have rows ``x`` of the buffer."""
    nodes, edges = size_of(sample, closed)
    schema = schema_of(x.shape[1], labels=False, weights=closed)
    layout = SlotLayout(0, Capacity.distinct(nodes + extra, edges + extra, 2), schema)
    rows = sample.nodes
    whole = degrees if whole is None else whole
    return batch_of(layout, sample, {"x": x[rows]}, degrees[rows], whole[rows])


def outputs(model, batch):
    """Returns the rows of the real nodes, with gradients."""
    runner = StaticGraphRunner(model, [batch.capacity], "eager", check_padding=False)
    return runner(batch)[: batch.real_nodes]


@examples(60)
@given(
    rows=st.integers(1, 30),
    edges=st.integers(0, 90),
    fanouts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    closed=st.booleans(),
    seed=st.integers(0, 999),
)
def test_every_node_and_edge_of_a_sample_is_in_its_batch_once(rows, edges, fanouts, closed, seed):
    ends = np.random.default_rng(seed).integers(0, rows, (2, edges))
    neighbours = Neighbours.of(*ends, rows, "both")
    seeds = np.random.default_rng(seed).permutation(rows)[: max(1, rows // 3)]
    sample = neighbours.sample(seeds, fanouts, 1)
    x = np.arange(rows, dtype=np.float32)[:, None] + 1
    batch = padded(sample, x, neighbours.degrees, closed=closed)
    n, e = batch.real_nodes, batch.real_edges
    assert batch.x[:n, 0].tolist() == (sample.nodes + 1).tolist()
    wanted = edge_list(sample)
    if closed:
        wanted = wanted[:, wanted[0] != wanted[1]]
        wanted = torch.cat([wanted, torch.arange(n).repeat(2, 1)], 1)
    real = batch.edge_index[:, :e]
    assert sorted(real.T.tolist()) == sorted(wanted.T.tolist())
    assert (real[1].diff() >= 0).all(), "the kernels need edges by destination"
    assert (batch.edge_index[:, e:] >= n).all()


@pytest.mark.parametrize("direction", ["in", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_full_fan_out_equals_the_whole_graph_with_loops_and_repeated_edges(kind, direction):
    """Some nodes have two self-loops, some edges occur three times, node 24 has only a loop."""
    rows = 25
    ends = np.random.default_rng(2).integers(0, 24, (2, 90))
    ends = np.concatenate([ends, ends[:, :20], ends[:, :9], [[0, 1, 1, 24]] * 2], axis=1)
    neighbours = Neighbours.of(*ends, rows, direction)
    sample = neighbours.sample(np.arange(rows), [len(ends[0])], 0)
    conv = {"sage": SAGEConv(4, 8), "gcn": GCNConv(4, 8), "gat": GATConv(4, 2, heads=4)}[kind]
    model = SampledGNN(kind, 4, 8, 8, 1)
    if kind == "gat":
        model.layers[0] = GATConv(4, 2, heads=4)
    model.layers[0].load_state_dict(conv.state_dict())
    x = torch.randn(rows, 4)
    batch = padded(sample, x.numpy(), neighbours.degrees, closed=kind == "gcn")
    both = np.concatenate([ends, ends[::-1]], axis=1) if direction == "both" else ends
    # float32 in another order of the edges.
    torch.testing.assert_close(
        outputs(model, batch), conv(x, torch.from_numpy(both.copy())), rtol=1e-4, atol=1e-5
    )


def test_gcn_over_a_part_is_the_mean_of_what_is_resident_with_degrees_of_the_whole():
    """By loops: mean of sqrt((1 + d_i) / (1 + d_j)) x_j over the resident closed neighbourhood."""
    rows, resident = 30, 18
    ends = simple_edges(rows, 140, 4)
    whole = np.bincount(ends[1], minlength=rows)
    inside = ends[:, (ends < resident).all(axis=0)]
    neighbours = Neighbours.of(*inside, resident)
    degrees = neighbours.degrees
    assert (degrees < whole[:resident]).any()
    sample = neighbours.sample(np.arange(resident), [int(degrees.max())], 0)
    x = torch.randn(resident, 4)
    batch = padded(sample, x.numpy(), degrees, whole[:resident], closed=True)
    model = SampledGNN("gcn", 4, 8, 3, 1)
    layer = model.layers[0]
    out = outputs(model, batch)
    for i in range(resident):
        closed = [i, *inside[0, inside[1] == i].tolist()]
        parts = [np.sqrt((1 + whole[i]) / (1 + whole[j])) * layer.lin(x[j]) for j in closed]
        expected = sum(parts) / len(parts) + layer.bias
        torch.testing.assert_close(out[i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("cheb", 2, 2, 2, 2), "choose one of sage, gcn, gat"),
     (("gat", 2, 6, 2, 2, 0.0, 4), "multiple of heads"),
     (("sage", 2, 6, 2, 0), "layers=0: give a whole number of at least 1"),
     (("gat", 2, 6, 2, 2, 0.0, 0), "heads=0: give a whole number of at least 1")],
)  # fmt: skip
def test_models_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SampledGNN(*arguments)
