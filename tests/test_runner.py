"""The runner: padded equals unpadded PyG, whatever the padding holds and in whichever bucket."""

from __future__ import annotations

import copy
from itertools import chain, islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.alike import real_ids, update
from support.molecule_steps import Molecules, adam, bce, loader_of
from support.parity import poisoned
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data

import staticgraph as sg


@pytest.fixture(scope="module")
def plan(hiv):
    return sg.plan_buckets(hiv, batch_size=32)


def graphs_of(store, batch) -> list[Data]:
    """The same graphs, with edges in their original order."""
    return store[real_ids(batch)]


def unpadded(store, batch) -> Batch:
    """The same graphs as a PyG batch."""
    return Batch.from_data_list(graphs_of(store, batch))


def pyg_loss(model, data):
    out = model(data.x, data.edge_index, data.edge_attr, data.batch)
    return out, F.binary_cross_entropy_with_logits(out, data.y.to(out.dtype))


def relative(found: torch.Tensor, expected: torch.Tensor, largest: float) -> float:
    return float((found - expected).abs().max()) / largest


@pytest.mark.parametrize(
    ("gps", "scale", "real_known"),
    [  # each value of an axis with each value of another axis
        pytest.param(True, 0.0, True, id="gps-0-free"),
        pytest.param(False, 0.0, False, id="gine-0-fixed"),
        pytest.param(False, 1.0, True, id="gine-1-free"),
        pytest.param(True, 1.0, False, id="gps-1-fixed"),
        pytest.param(False, 1000.0, True, id="gine-1000-free"),
        pytest.param(True, 1000.0, False, id="gps-1000-fixed"),
    ],
)
def test_padded_equals_unpadded_in_float64(hiv, plan, gps, scale, real_known):
    """Outputs, loss, all gradients and BatchNorm's buffers, within 1e-10, whatever the padding.

    ``fixed`` hides the real counts, so that layers take the path of a compiled step.
    """
    model = Molecules(hiv, gps).double()
    stock = copy.deepcopy(model)
    runner = sgd_runner(model, plan, "auto", loss=bce)
    for batch in list_of(loader_of(hiv, plan), 2):
        data = unpadded(hiv, batch)
        batch = poisoned(batch, scale) if scale else batch
        if not real_known:
            batch.real = None
        loss = runner.step(batch)
        stock.zero_grad()
        _, expected = pyg_loss(stock, data)
        expected.backward()
        assert abs(float(loss) - float(expected.detach())) < 1e-10
        grads = [p.grad for p in stock.parameters() if p.grad is not None]
        largest = max(float(g.abs().max()) for g in grads)
        for (name, ours), theirs in zip(model.named_parameters(), stock.parameters(), strict=True):
            if theirs.grad is not None:
                assert relative(ours.grad, theirs.grad, largest) < 1e-10, name
        for (name, ours), theirs in zip(model.named_buffers(), stock.buffers(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12), name
        stock.eval()
        with torch.no_grad():
            out, _ = pyg_loss(stock, data)
        stock.train()
        result = runner.eval_step(batch)
        assert relative(result.out[batch.graph_mask], out, float(out.abs().max())) < 1e-10


def list_of(loader, count):
    batches = []
    for batch in loader:
        batches.append(batch.clone())
        batches[-1].real = batch.real
        if len(batches) == count:
            break
    return batches


def test_a_bucket_does_not_matter(hiv):
    """The same graphs in a larger bucket give the same loss and gradients."""
    ids = hiv.splits["train"][:20]
    plan = sg.BucketPlan.of([(700, 1500, 33), (2000, 4500, 70)])
    model = Molecules(hiv, gps=True).double()
    runner = sgd_runner(model, plan, "auto", loss=bce)
    grads = []
    for bucket, capacity in enumerate(plan.capacities):
        batch = sg.StaticBatch.of(hiv, ids, capacity, bucket)
        batch.real = None
        runner.step(batch)
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    largest = max(float(g.abs().max()) for g in grads[0])
    for one, other in zip(*grads, strict=True):
        assert relative(one, other, largest) < 1e-10


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "gps", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["gine", "gps"]
)
def test_fifty_steps_in_float32_follow_pyg(hiv, plan, gps):
    """The trajectory departs from the float64 one no further than PyG's own does in float32.

    The amount depends on luck: a ReLU flipped by a rounding error moves the loss by 1e-5. So PyG
    runs four times over the same batches with graphs and edges in a different order each time,
    which changes only the rounding; twice the largest departure is the tolerance.
    """
    model = Molecules(hiv, gps)
    exact = Stock(copy.deepcopy(model).double(), seed=None)
    stocks = [Stock(copy.deepcopy(model), seed) for seed in range(4)]
    runner = sg.StaticGraphRunner(model, plan, loss=bce, optimizer=adam(model))
    ours, truth, departures = [], [], []
    loader = loader_of(hiv, plan)
    for batch in islice(chain(loader, loader, loader), 50):
        graphs = graphs_of(hiv, batch)
        ours.append(float(runner.step(batch)))
        truth.append(exact.step(graphs))
        departures.append([abs(stock.step(graphs) - truth[-1]) for stock in stocks])
    assert len(ours) == 50
    error = np.abs(np.subtract(ours, truth))
    assert error.max() <= 2 * np.max(departures)
    assert np.mean(truth[-10:]) < np.mean(truth[:10]), "the reference does not learn"


class Stock:
    """Plain PyG training with its own order of the graphs of every batch and of the edges of every
    graph: the same sums, rounded differently."""

    def __init__(self, model: nn.Module, seed: int | None) -> None:
        self.model = model
        self.optimizer = adam(model)
        self.order = None if seed is None else torch.Generator().manual_seed(seed)

    def step(self, graphs: list[Data]) -> float:
        if self.order is not None:
            mixed = torch.randperm(len(graphs), generator=self.order).tolist()
            graphs = [self._mixed(graphs[i]) for i in mixed]
        data = Batch.from_data_list(graphs)
        _, loss = pyg_loss(self.model, data)
        update(self.optimizer, loss)
        return float(loss.detach())

    def _mixed(self, graph: Data) -> Data:
        edges = torch.randperm(graph.num_edges, generator=self.order)
        return Data(
            x=graph.x,
            edge_index=graph.edge_index[:, edges],
            edge_attr=graph.edge_attr[edges],
            y=graph.y,
        )
