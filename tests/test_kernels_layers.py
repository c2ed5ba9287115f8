"""PyG's own layers in mode ``fused``: rewritten to kernels, with plain PyG's results.

The oracle is PyG itself on the unpadded batch (:mod:`support.parity`): graphs with self-loops and
isolated nodes, everything in float64, garbage in the padding.
"""

from __future__ import annotations

import copy

import pytest
import torch
from support.fused_models import BATCH, LAYERS, Model, call, gcn
from support.parity import (
    CAPACITY,
    WIDTH,
    Result,
    differences,
    loss,
    plain_step,
    poisoned,
)
from support.rewritten import fired
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool, global_max_pool, global_mean_pool
from torch_geometric.nn.aggr import (
    MaxAggregation,
    MeanAggregation,
    SoftmaxAggregation,
    SumAggregation,
)

import staticgraph as sg
from staticgraph.steps.computation.model_setup import Subject


def assert_fused_as_plain(stock: nn.Module) -> None:
    """Asserts that outputs, gradients and statistics equal plain PyG's, and that kernels ran."""
    model = copy.deepcopy(stock)
    runner = sg.StaticGraphRunner(
        Subject(model, forward=call, check_padding=False), [CAPACITY], "fused"
    )
    batch = poisoned(BATCH, 1e3)
    out = runner(batch)
    mean = sg.masked_mean(loss(out, batch), batch)
    mean.backward()
    assert sum(fired(runner).values()) >= 2
    step = Result(model, out[: BATCH.real.graphs], mean)
    assert differences(plain_step(stock, call, BATCH), step, 1e-10) == []


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_plain_pygs(name):
    torch.manual_seed(0)
    assert_fused_as_plain(LAYERS[name]())


POOLS = {
    "add": global_add_pool,
    "mean": global_mean_pool,
    "max": global_max_pool,
    "sum module": SumAggregation(),
    "mean module": MeanAggregation(),
    "max module": MaxAggregation(),
    "softmax": SoftmaxAggregation(),
    "softmax of a temperature": SoftmaxAggregation(t=0.3, semi_grad=True),
    "softmax, learned": SoftmaxAggregation(learn=True, channels=WIDTH),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_plain_pygs(name):
    torch.manual_seed(0)
    assert_fused_as_plain(Model(gcn(), pool=POOLS[name]))


class OtherWeights(Model):
    """The second layer has other edge weights, and both learn their scale."""

    def __init__(self, conv):
        super().__init__(conv)
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x, edge_index, edge_attr, edge_weight, batch):
        edge_weight = edge_weight * self.scale
        x = self.first(self.node_encoder(x), edge_index, edge_weight)
        return self.head(self.pool(self.second(x, edge_index, edge_weight.square()), batch))


def test_layers_with_different_weights_do_not_share_degrees():
    torch.manual_seed(0)
    assert_fused_as_plain(OtherWeights(gcn()))


class LearnedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(1, 1)
        self.conv = GCNConv(4, 4)

    def forward(self, x, edge_index, edge_attr, batch, num_graphs):
        weight = self.scale(edge_attr).sigmoid().squeeze(1)
        return global_add_pool(self.conv(x, edge_index, weight), batch, num_graphs)


def test_each_of_several_self_loops_of_a_node_has_pygs_gradient():
    """The weight of the last one counts, and PyG gives its gradient to all."""
    torch.manual_seed(0)
    stock = LearnedWeights().double()
    model = copy.deepcopy(stock)
    edges = torch.tensor([[0, 1, 0, 2, 0, 1], [0, 0, 0, 0, 0, 2]])
    x, attr = torch.randn(3, 4).double(), torch.randn(6, 1).double()
    graphs = [Data(x=x, edge_index=edges, edge_attr=attr)] * 2
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    plan = sg.plan_buckets(store, batch_size=2)
    runner = sg.StaticGraphRunner(model, plan, "fused", check_padding=False)
    batch = next(iter(runner.loader(store)))
    sg.masked_mean(runner(batch).square(), batch).backward()
    assert fired(runner)["gcn"] == 1
    stock(x, edges, attr, torch.zeros(3, dtype=torch.int64), 1).square().mean().backward()
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)


def test_eager_stays_eager_with_kernels():
    """``convert(kernels=True)`` concerns captured graphs alone."""
    torch.manual_seed(0)
    model = sg.convert(LAYERS["gcn"](), kernels=True)
    stock = copy.deepcopy(LAYERS["gcn"]())
    stock.load_state_dict(model.state_dict())
    runner = sg.StaticGraphRunner(model, [CAPACITY], "eager", forward=call)
    plain = sg.StaticGraphRunner(stock, [CAPACITY], "eager", forward=call)
    assert torch.equal(runner(BATCH), plain(BATCH))
