"""The model zoo: plain PyG models with the right shapes that read every feature, static or not."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.alike import assert_same_gradients
from torch_geometric.data import Batch, Data

import staticgraph as sg
from staticgraph import models


def call(model: torch.nn.Module, graphs: list[Data]) -> torch.Tensor:
    batch = Batch.from_data_list(graphs)
    edge_attr = getattr(batch, "edge_attr", None)
    return model(batch.x, batch.edge_index, edge_attr, batch.batch, len(graphs))


@pytest.mark.parametrize("pool", ["mean", "add"])
@pytest.mark.parametrize("name", models.NAMES)
def test_a_batch_gives_what_each_graph_gives_alone(name, pool, esol):
    model = models.build(name, esol, hidden=16, layers=2, num_outputs=3, pool=pool).double().eval()
    graphs = esol[[0, 1, int(esol.sizes[:, 0].argmin()), 7]]
    together = call(model, graphs)
    assert together.shape == (4, 3)
    alone = torch.cat([model(g.x, g.edge_index, g.edge_attr) for g in graphs])
    assert torch.allclose(together, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", models.NAMES)
def test_every_parameter_learns(name, esol):
    model = models.build(name, esol, hidden=16, layers=2)
    call(model, esol[:8]).square().sum().backward()
    without = {key for key, value in model.named_parameters() if value.grad is None}
    assert not without, f"{name}: {without} take no part in the output"


@pytest.mark.parametrize("name", models.NAMES)
def test_static_batches_give_the_same(name, esol):
    """Outputs and gradients of padded batches through the runner equal those of unpadded ones."""
    model = models.build(name, esol, hidden=16, layers=2).double()
    plain = copy.deepcopy(model)
    ids = [3, 1, 4, 1059]
    expected = call(plain, esol[ids])
    runner = sg.StaticGraphRunner(model, [(200, 400, 7)], loss=lambda out, _: out.square())
    batch = sg.StaticBatch.of(esol, ids, (200, 400, 7))
    out = runner(batch)[batch.graph_mask]
    assert torch.allclose(out, expected, rtol=0, atol=1e-10)
    for each in (expected, out):
        each.square().mean().backward()
    assert_same_gradients(model, plain, rtol=1e-9, atol=1e-10)


def test_encoders_take_vectors_bools_and_no_rows():
    categories, numbers = models.CategoryEncoder((5,), 4), models.NumberEncoder(1, 4)
    assert categories(torch.tensor([0, 4])).shape == (2, 4)
    assert numbers(torch.tensor([True, False])).shape == (2, 4)
    two = models.CategoryEncoder((2, 3), 4)
    assert two(torch.empty(0, 2, dtype=torch.int64)).shape == (0, 4)
    summed = two.tables[0].weight[1] + two.tables[1].weight[2]
    assert torch.equal(two(torch.tensor([[1, 2]]))[0], summed)


def store_with(**fields) -> sg.GraphStore:
    none = np.empty(0, np.int64)
    return sg.GraphStore.from_arrays(np.array([2]), np.array([0]), none, none, fields, name="toy")


@pytest.mark.parametrize(
    ("name", "fields", "options", "message"),
    [
        ("gnn", {}, {}, "there is no model 'gnn'; choose one of gine, gps, gin, gcn, gat, sage"),
        ("gin", {}, {"pool": "max"}, "there is no pool 'max'; choose one of mean, add"),
        ("gin", {}, {}, "toy has no node features x: add some, such as ones"),
        ("gps", {}, {"hidden": 30}, "gps has 4 heads, which do not divide hidden=30"),
        (
            "gine",
            {"x": ("node", np.ones(2))},
            {},
            "gine needs edge_attr, which toy has not; gin works without",
        ),
        (
            "gin",
            {"x": ("node", np.array([3, -7]))},
            {},
            "x of toy is an integer field with values down to -7",
        ),
        (
            "gin",
            {"x": ("node", np.array([3, 10**7]))},
            {},
            "x of toy goes up to 10000000, too many for an embedding table (at most 1000000)",
        ),
    ],
)
def test_what_cannot_be_built_is_said(name, fields, options, message):
    with pytest.raises(ValueError) as caught:
        models.build(name, store_with(**fields), **options)
    assert message in str(caught.value)
