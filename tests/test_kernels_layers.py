"""PyG's own layers in mode ``fused``: rewritten to kernels, with plain PyG's results.

The oracle is PyG itself on the unpadded batch (:mod:`support.parity`): graphs with self-loops and
isolated nodes, everything in float64, garbage in the padding.
"""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import assert_same_gradients, squared
from support.layer_cases import CASES, C, Case
from support.layer_cases.case import attributed, plain, weighted
from support.layer_model import model_of
from support.parity import (
    CAPACITY,
    NODES,
    STORE,
    Result,
    allowed_difference,
    call,
    differences,
    plain_step,
    poisoned,
)
from support.rewritten import fired
from support.runners import made_runner
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, GINEConv, global_add_pool

import staticgraph as sg

BATCH = sg.StaticBatch.of(STORE, range(len(NODES)), CAPACITY, pointers=True)
# Options of layers that are rewritten in another way, or not the one of the support table.
OF_ATTENTION = (
    ({"out_channels": C, "heads": 3, "concat": False}, plain),
    ({"out_channels": C, "add_self_loops": False}, plain),
    ({"out_channels": C, "residual": True, "bias": False}, plain),
    ({"out_channels": 4, "heads": 2, "edge_dim": 4, "fill_value": "add"}, attributed),
    ({"out_channels": C, "edge_dim": 4, "add_self_loops": False}, attributed),
    ({"out_channels": 4, "heads": 2, "edge_dim": 1, "fill_value": 0.5}, weighted),
)
BUILT = [
    (GCNConv, {"out_channels": C, "add_self_loops": False}, weighted),
    (GCNConv, {"out_channels": C, "normalize": False}, weighted),
    (GCNConv, {"out_channels": C, "normalize": False, "aggr": "mean"}, weighted),
    *((kind, *given) for kind in (GATConv, GATv2Conv) for given in OF_ATTENTION),
    (GATv2Conv, {"out_channels": C, "share_weights": True}, plain),
]
OPTIONS = [
    *(
        Case(f"{kind.__name__} {options}", "", lambda k=kind, o=options: k(C, **o), caller)
        for kind, options, caller in BUILT
    ),
    Case("GINConv max", "", lambda: GINConv(nn.Linear(C, C), aggr="max", train_eps=True), plain),
    Case("GINEConv max", "", lambda: GINEConv(nn.Linear(C, C), edge_dim=4, aggr="max"), attributed),
]


def fused_as_plain(stock: nn.Module, call, tolerance: float = 1e-10) -> int:
    """Asserts that outputs, gradients and statistics equal plain PyG's; returns how often something
    was rewritten."""
    model = copy.deepcopy(stock)
    runner = made_runner(model, [CAPACITY], "fused", forward=call, check_padding=False)
    batch = poisoned(BATCH, 1e3)
    out = runner(batch)
    mean = sg.masked_mean(squared(out, batch), batch)
    mean.backward()
    step, expected = Result(model, out[: BATCH.real.graphs], mean), plain_step(stock, call, BATCH)
    allowed = allowed_difference(stock, call, BATCH, expected, False, tolerance)
    assert differences(expected, step, allowed) == []
    return sum(fired(runner).values())


@pytest.mark.sampled(18, always=["DNAConv", "ClusterGCNConv", "to_dense_batch and back"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_of_the_support_table_is_plain_pygs(case):
    if not case.eager_only:
        fused_as_plain(model_of(case), call, case.tolerance)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("case", OPTIONS, ids=lambda case: case.name)
def test_a_layer_with_options_is_plain_pygs_and_rewritten(case):
    assert fused_as_plain(model_of(case), call, case.tolerance) >= 2


class OtherWeights(nn.Module):
    """The second layer has other edge weights, and both learn their scale."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(C, C), GCNConv(C, 2)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, data):
        weight = data.edge_weight * self.scale
        x = self.first(data.x, data.edge_index, weight).relu()
        return global_add_pool(self.second(x, data.edge_index, weight.square()), data.batch)


def test_layers_with_different_weights_do_not_share_degrees():
    assert fused_as_plain(OtherWeights().double(), call) >= 3


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
    stock = LearnedWeights().double()
    model = copy.deepcopy(stock)
    edges = torch.tensor([[0, 1, 0, 2, 0, 1], [0, 0, 0, 0, 0, 2]])
    x, attr = torch.randn(3, 4).double(), torch.randn(6, 1).double()
    graphs = [Data(x=x, edge_index=edges, edge_attr=attr)] * 2
    store = sg.GraphStore.from_pyg(graphs)
    plan = sg.plan_buckets(store, batch_size=2)
    runner = sg.StaticGraphRunner(model, plan, "fused", check_padding=False)
    batch = next(iter(runner.loader(store)))
    sg.masked_mean(runner(batch).square(), batch).backward()
    assert fired(runner)["gcn"] == 1
    stock(x, edges, attr, torch.zeros(3, dtype=torch.int64), 1).square().mean().backward()
    assert_same_gradients(model, stock, rtol=1e-10, atol=1e-12)


def test_eager_stays_eager_with_kernels():
    """``convert(kernels=True)`` concerns captured graphs alone."""
    stock = model_of(next(case for case in CASES if case.name == "GCNConv"))
    model = sg.convert(copy.deepcopy(stock), kernels=True)
    outs = [
        sg.StaticGraphRunner(one, [CAPACITY], "eager", forward=call)(BATCH)
        for one in (model, stock)
    ]
    assert torch.equal(*outs)
