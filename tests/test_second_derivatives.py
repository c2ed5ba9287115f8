"""Second derivatives of operators and of penalties on gradients."""

from __future__ import annotations

import pytest
import torch
from support.kernel_cases import CASES, DROPPED, FEW, MORE, operands, where
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_add_pool

import staticgraph as sg

# Integers and bytes have no derivative.
ASKED = {**CASES, **MORE, **{name: dropped.run for name, dropped in DROPPED.items()}}
DIFFERENTIABLE = sorted(ASKED.keys() - {"collate", "fold_codes", "order_edges"})


def slopes_of(name, values, graph):
    """The derivatives of a smooth function of an operator's results."""
    outs = ASKED[name](values, where(FEW, "cpu"))
    outs = outs if isinstance(outs, list) else [outs]
    loss = sum(out.sin().sum() for out in outs if out.requires_grad)
    slopes = torch.autograd.grad(loss, list(values.values()), create_graph=graph, allow_unused=True)
    return [slope for slope in slopes if slope is not None]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_every_operator_has_a_second_derivative_or_says_that_it_has_none(name):
    """Along a line, by differences of first derivatives."""
    random = torch.Generator().manual_seed(0)

    def drawn(like):
        return torch.randn(like.shape, generator=random, dtype=torch.float64)

    given = {key: drawn(value) for key, value in operands(FEW, torch.float64, "cpu").items()}
    along = {key: drawn(value) for key, value in given.items()}
    weights = {}

    def slope(step, graph=False):
        values = {key: (v + step * along[key]).requires_grad_() for key, v in given.items()}
        slopes = slopes_of(name, values, graph)
        for place, each in enumerate(slopes):
            weights.setdefault(place, drawn(each))
        return sum((each * weights[n]).sum() for n, each in enumerate(slopes)), values

    total, values = slope(0.0, graph=True)
    try:
        total.backward()
    except RuntimeError as error:
        assert "dropout" in name
        assert "graph_attention has no second derivative" in str(error)  # noqa: PT017
        return
    leaves = [(value.grad, along[key]) for key, value in values.items()]
    found = sum(float((grad * u).sum()) for grad, u in leaves if grad is not None)
    differences = float(slope(1e-6)[0] - slope(-1e-6)[0]) / 2e-6
    assert found == pytest.approx(differences, rel=1e-5, abs=1e-4)


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


@pytest.mark.parametrize("norm", [torch.nn.Identity(), torch.nn.BatchNorm1d(2)])
def test_a_gradient_penalty_in_ones_own_loop_is_plain_pygs(norm):
    model, x = Penalised(norm), torch.randn(4, 3, requires_grad=True)
    one = torch.zeros(4, dtype=torch.long)
    expected = weights_penalty(model, x, lambda x: model(x, EDGES, one, 1))
    for mode in ("fused", "eager"):
        assert torch.allclose(penalised(model, x, mode), expected, atol=1e-6)
