"""Matrix products that a model writes itself, and those in a GRU cell, run by oneDNN on a CPU."""

from __future__ import annotations

import operator

import pytest
import torch
from support.rewritten import CAPACITY, difference, fired
from torch import nn
from torch_geometric.nn import GatedGraphConv, global_add_pool

WIDTH = 1 + (1 << 20) // (CAPACITY[0] * 9)  # just large enough for products with nine columns


class Written(nn.Module):
    """``head(relu(x @ weight + bias))``, summed per graph."""

    def __init__(self, width=WIDTH, dtype=torch.float32, spelled=operator.matmul):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, width, dtype=dtype) / 10)
        self.bias = nn.Parameter(torch.randn(width, dtype=dtype))
        self.head = nn.Linear(width, 1, dtype=dtype)
        self.spelled = spelled

    def forward(self, x, batch, batch_size):
        hidden = (self.bias + self.spelled(x.to(self.weight.dtype), self.weight)).relu()
        return global_add_pool(self.head(hidden), batch, batch_size)


class Gated(nn.Module):
    """PyG's GatedGraphConv, or a GRU cell alone, on top of one linear layer."""

    def __init__(self, width=WIDTH, bias=True, conv=False):
        super().__init__()
        self.encode = nn.Linear(9, width)
        self.conv = GatedGraphConv(width, 2, bias=bias) if conv else None
        self.cell = nn.GRUCell(width, width, bias)

    def forward(self, x, edge_index, batch, batch_size):
        hidden = self.encode(x.float())
        moved = (
            self.cell(hidden.sin(), hidden) if self.conv is None else self.conv(hidden, edge_index)
        )
        return global_add_pool(moved, batch, batch_size) / 10


@pytest.mark.parametrize(
    "spelled",
    [operator.matmul, torch.matmul, torch.mm, lambda x, w: x.mm(w), lambda x, w: x.matmul(w)],
    ids=["@", "matmul", "mm", ".mm", ".matmul"],
)
def test_a_product_as_written_takes_its_bias_and_relu_along(spelled, esol):
    torch.manual_seed(0)
    largest, runner = difference(Written(spelled=spelled), esol)
    assert largest < 2e-5
    assert fired(runner)["linear"] == 1
    graph = next(iter(runner.steps.compiled._functions.values())).captured.graph
    assert not [
        node
        for node in graph.nodes
        if node.target in (torch.add, torch.relu, torch.nn.functional.relu)
    ]


@pytest.mark.parametrize(("dtype", "width"), [(torch.float64, WIDTH), (torch.float32, WIDTH - 2)])
def test_small_products_and_those_of_other_dtypes_stay(dtype, width, esol):
    largest, runner = difference(Written(width, dtype), esol)
    assert largest < 2e-5
    assert not fired(runner)["linear"]


@pytest.mark.parametrize("bias", [True, False])
def test_a_gru_cell_computes_what_torchs_does(bias, esol):
    torch.manual_seed(0)
    largest, runner = difference(Gated(bias=bias), esol)
    assert largest < 2e-5
    assert fired(runner)["linear"] == 2  # the encoder, and both products of the cell at its line


def test_pygs_gated_graph_convolution_is_served(esol):
    torch.manual_seed(0)
    largest, runner = difference(Gated(conv=True), esol)
    assert largest < 2e-5
    assert fired(runner)["linear"] == 5  # the encoder, and per round one product and one cell
