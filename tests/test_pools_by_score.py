"""Pools that keep every node above a score, as in PyG's example of attention with labels: the kept
nodes index fields of all nodes, and only the data determine how many there are. And what is behind
a pool of the best nodes, over these."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.alike import assert_same_gradients
from support.graphs import double_graphs
from support.places import mode_of
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, GPSConv, SAGPooling, TopKPooling, global_add_pool
from torch_geometric.nn.aggr import LSTMAggregation
from torch_geometric.nn.attention import PolynormerAttention
from torch_geometric.nn.pool.connect.filter_edges import filter_adj
from torch_geometric.nn.pool.select.topk import topk
from torch_geometric.utils import scatter, to_dense_batch

import staticgraph as sg

CAPACITY = (50, 110, 8)
IDS = [3, 1, 8, 5]


def graphs() -> list[Data]:
    made = double_graphs(3 + number % 6 for number in range(12))
    for graph in made:
        graph.attn = torch.softmax(graph.x[:, 0], 0)
    return made


class Net(nn.Module):
    """``examples/colors_topk_pool.py`` of PyG: scores of the kept nodes are fitted to ``attn``.

    With ``short``, the first convolution is a linear layer, and there is none behind the pool.
    """

    def __init__(self, pool, short: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.short = short
        self.conv = GINConv(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16)))
        self.pool, self.after = pool(16), GINConv(nn.Linear(16, 16))
        if short:
            self.conv, self.after = nn.Linear(4, 16), None
        self.head = nn.Linear(16, 1)
        self.double()

    def forward(self, data):
        h = (self.conv(data.x) if self.short else self.conv(data.x, data.edge_index)).relu()
        h, edge_index, _, batch, perm, score = self.pool(h, data.edge_index, None, data.batch)
        ratio = scatter(torch.ones_like(score), batch, dim_size=data.num_graphs)
        h = h if self.short else self.after(h, edge_index).relu()
        out = self.head(global_add_pool(h, batch, data.num_graphs))
        wanted = data.attn[perm]
        apart = F.kl_div(torch.log(score + 1e-14), wanted, reduction="none")
        apart = scatter(apart, batch, dim_size=data.num_graphs)
        return out, apart, ratio


class ByHand(nn.Module):
    """As published code writes a pool, with the functions that PyG's own pools call."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, h, edge_index, edge_attr, batch):
        score = self.score(h).sigmoid().view(-1)
        perm = topk(score, 0.5, batch)
        edge_index, _ = filter_adj(edge_index, edge_attr, perm, num_nodes=len(h))
        kept = score[perm]
        return h[perm] * kept[:, None], edge_index, None, batch[perm], perm, kept


POOLS = {
    "by hand": ByHand,
    "top": lambda width: TopKPooling(width, min_score=0.12),
    "top scaled": lambda width: TopKPooling(width, min_score=0.05, multiplier=3.0),
    "attention": lambda width: SAGPooling(width, min_score=0.12, GNN=GINConvOf),
    "nobody reaches it": lambda width: TopKPooling(width, min_score=0.99),
    "everybody does": lambda width: TopKPooling(width, min_score=0.0),
}


def GINConvOf(width: int, out: int) -> GINConv:
    return GINConv(nn.Linear(width, out))


def loss(out, batch):
    value, apart, _ = out
    return (value - batch.y).square().view(-1) + 0.1 * apart


@pytest.mark.parametrize("pool", POOLS)
def test_what_is_kept_indexes_the_fields_of_all_nodes(pool):
    compare_with_plain_pyg(Net(POOLS[pool]), "eager")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("pool", POOLS)
def test_what_is_kept_in_a_traced_graph(pool, monkeypatch):
    compare_with_plain_pyg(Net(POOLS[pool]), mode_of("traced", monkeypatch))


class Twice(Net):
    """``examples/triangles_sag_pool.py`` of PyG: the rows that a second pool keeps, which are those
    of all nodes where the first keeps everybody, index a field of the data."""

    def __init__(self) -> None:
        super().__init__(POOLS["everybody does"])
        self.again = TopKPooling(16, min_score=0.0).double()

    def forward(self, data):
        h = self.conv(data.x, data.edge_index).relu()
        h, edge_index, _, batch, _, _ = self.pool(h, data.edge_index, None, data.batch)
        h, _, _, batch, perm, score = self.again(h, edge_index, None, batch)
        ratio = scatter(torch.ones_like(score), batch)
        apart = scatter(score * data.attn[perm], batch)
        return self.head(global_add_pool(h, batch)).view(-1, 1), apart, ratio


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_what_a_second_pool_keeps_indexes_the_fields_of_all_nodes(mode):
    compare_with_plain_pyg(Twice(), mode)


class Behind(Net):
    """A layer whose result depends on how many nodes of one graph the pool kept at the most."""

    def __init__(self, layer) -> None:
        super().__init__(lambda width: TopKPooling(width, 0.5))
        self.layer = layer().double()

    def forward(self, data):
        h = self.conv(data.x, data.edge_index)
        h, edge_index, _, batch, _, score = self.pool(h, data.edge_index, None, data.batch)
        if isinstance(self.layer, GPSConv):
            h = global_add_pool(self.layer(h, edge_index, batch), batch)
        elif isinstance(self.layer, PolynormerAttention):
            dense, mask = to_dense_batch(h, batch)
            h = (self.layer(dense, mask) * mask[..., None]).sum(1)
        else:
            h = self.layer(h, batch)
        kept = scatter(score, batch)
        return self.head(h), kept, kept


BEHIND = {
    "recurrent": lambda: LSTMAggregation(16, 16),
    "multihead": lambda: GPSConv(16, None, heads=2),
    "performer": lambda: GPSConv(16, None, heads=2, attn_type="performer"),
    "polynormer": lambda: PolynormerAttention(16, heads=2, head_channels=8),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("layer", BEHIND)
def test_what_is_behind_a_pool_sees_the_rows_that_are_kept(layer, mode, monkeypatch):
    compare_with_plain_pyg(Behind(BEHIND[layer]), mode_of(mode, monkeypatch))


def compare_with_plain_pyg(model: Net, mode: str, evaluated: bool = True) -> None:
    """A step's loss and gradients; if ``evaluated``, an evaluation's kept nodes, too, for which
    Inductor would compile as many kernels again."""
    data = graphs()
    store = sg.GraphStore.from_pyg(data)
    plain = copy.deepcopy(model)
    runner = sgd_runner(model, [CAPACITY], mode, loss=loss)
    whole = Batch.from_data_list([data[i] for i in IDS])
    out = plain(whole)
    expected = loss(out, whole).mean()
    expected.backward()
    batch = sg.StaticBatch.of(store, IDS, CAPACITY)
    assert runner.step(batch).item() == pytest.approx(expected.item(), rel=1e-9)
    assert_same_gradients(model, plain, rtol=0, atol=1e-9)
    if evaluated:
        kept = runner.eval_step(batch).out[2][: len(IDS)]
        assert torch.equal(kept, plain(whole)[2]), "as many nodes of each graph"
