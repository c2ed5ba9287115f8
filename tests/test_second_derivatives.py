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
from staticgraph.kernels.table_sum.op import summed_by_entry
from staticgraph.steps.computation.model_setup import Subject

# Integers and bytes have no derivative; attention and programs have every one.
ASKED = {**CASES, **MORE, **{name: dropped.run for name, dropped in DROPPED.items()}}
DIFFERENTIABLE = sorted(
    name
    for name in ASKED.keys() - {"collate", "fold_codes", "graph_attention"}
    if not name.startswith("neighbours")
)


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


def test_the_gradient_of_a_table_that_edges_read_has_a_second_derivative():
    """On CUDA, where it is an operator of its own, it was none."""
    rows = torch.randn(20, 3, dtype=torch.float64, requires_grad=True)
    code = torch.arange(20) % 4
    assert torch.autograd.gradgradcheck(lambda rows: summed_by_entry(rows, code, 4).sin(), rows)


class Penalised(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.conv, self.norm = GCNConv(3, 2), norm

    def forward(self, x, edge_index, batch, num_graphs):
        x = self.norm(self.conv(x, edge_index)).tanh()
        return global_add_pool(x, batch, num_graphs)


EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def weights_penalty(model, x, call):
    """Returns the gradient of a penalty of the gradient by the features."""
    model.zero_grad()
    (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    slope.square().sum().backward()
    return model.conv.lin.weight.grad


def penalised(model, x, mode):
    runner = sg.StaticGraphRunner(model, [(12, 14, 3)], mode=mode)
    graph = Data(x=x.detach(), edge_index=EDGES, num_nodes=4)
    batch = next(iter(runner.loader(sg.GraphStore.from_pyg([graph]))))
    x = batch.x.clone().requires_grad_()
    return weights_penalty(model, x, lambda x: runner(batch.replace(x=x))[batch.graph_mask])


def test_a_gradient_penalty_in_ones_own_loop_is_plain_pygs():
    torch.manual_seed(0)
    model, x = Penalised(torch.nn.Identity()), torch.randn(4, 3, requires_grad=True)
    one = torch.zeros(4, dtype=torch.long)
    expected = weights_penalty(model, x, lambda x: model(x, EDGES, one, 1))
    for mode in ("fused", "eager"):
        assert torch.allclose(penalised(model, x, mode), expected, atol=1e-6)


def test_a_gradient_penalty_in_ones_own_loop_names_the_mode_to_take():
    model = Penalised(torch.nn.BatchNorm1d(2))
    with pytest.raises(RuntimeError, match=r"batch_norm has no second derivative: .*mode='eager'"):
        penalised(model, torch.randn(4, 3), "fused")


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
