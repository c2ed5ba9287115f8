"""Operators without a second derivative say so by name wherever one is requested: none returns a
number or fails inside its kernel instead."""

from __future__ import annotations

import pytest
import torch
from support.alike import adam
from support.kernel_cases import CASES, DROPPED, FEW, MORE, operands, where
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GINConv, global_add_pool

import staticgraph as sg
from staticgraph.steps.computation.model_setup import Subject

# Integers and bytes have no derivative; attention and programs have a first and a second.
ASKED = {**CASES, **MORE, **{name: dropped.run for name, dropped in DROPPED.items()}}
DIFFERENTIABLE = sorted(
    name
    for name in ASKED.keys() - {"collate", "fold_codes", "graph_attention", "source_sum"}
    if not name.startswith("neighbours")
)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_every_operator_refuses_a_second_derivative_by_its_name(name):
    values = operands(FEW, torch.float64, "cpu")  # as other tests compile the loops
    outs = ASKED[name](values, where(FEW, "cpu"))
    outs = outs if isinstance(outs, list) else [outs]
    loss = sum(out.square().sum() for out in outs if out.requires_grad)
    slopes = torch.autograd.grad(loss, list(values.values()), create_graph=True, allow_unused=True)
    twice = sum(slope.square().sum() for slope in slopes if slope is not None)
    with pytest.raises(RuntimeError, match=r"^staticgraph::\w+ has no second derivative"):
        twice.backward()


class Penalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(3, 2)

    def forward(self, x, edge_index, batch, num_graphs):
        return global_add_pool(self.conv(x, edge_index).tanh(), batch, num_graphs)


def test_a_gradient_penalty_in_ones_own_loop_names_the_mode_to_take_and_that_mode_has_it():
    torch.manual_seed(0)
    model = Penalised()
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    graph = Data(x=torch.randn(4, 3), edge_index=edges, num_nodes=4)

    def penalised(mode):
        runner = sg.StaticGraphRunner(model, [(12, 14, 3)], mode=mode)
        batch = next(iter(runner.loader(sg.GraphStore.from_pyg([graph]))))
        batch = batch.replace(x=batch.x.clone().requires_grad_())
        model.zero_grad()
        out = runner(batch)[batch.graph_mask]
        (slope,) = torch.autograd.grad(out.sum(), batch.x, create_graph=True)
        slope.square().sum().backward()
        return model.conv.lin.weight.grad

    with pytest.raises(RuntimeError, match=r"gcn_sum has no second derivative: .*mode='eager'"):
        penalised("fused")
    found = penalised("eager")
    x = graph.x.clone().requires_grad_()
    model.zero_grad()
    out = model(x, edges, torch.zeros(4, dtype=torch.long), 1)
    torch.autograd.grad(out.sum(), x, create_graph=True)[0].square().sum().backward()
    assert torch.allclose(found, model.conv.lin.weight.grad, atol=1e-6)


class Forces(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GINConv(torch.nn.Linear(3, 3))

    def forward(self, pos, edge_index, batch, num_graphs):
        energy = global_add_pool(self.conv(pos, edge_index).tanh(), batch, num_graphs)
        return torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]


def test_fused_steps_refuse_a_model_of_forces_when_the_runner_is_made():
    model = Forces()
    subject = Subject(
        model,
        loss=lambda out, batch: out.square(),
        optimizer=adam(model),
        differentiable=("pos",),
    )
    with pytest.raises(ValueError, match=r"no second derivatives.* by pos .*mode='eager'"):
        sg.StaticGraphRunner(subject, [(12, 14, 3)], mode="fused")
