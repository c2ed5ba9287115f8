"""Second derivatives: a SchNet with forces trains in fixed shapes as it does in plain PyG."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.dryrun_models import CUTOFF, Forces
from support.runners import made_runner, sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool

import staticgraph as sg
from staticgraph.steps.tracing.trace import trace_step


def molecules(count: int = 6) -> list[Data]:
    """Random clouds of atoms with edges below the cutoff, energies and forces."""
    random = np.random.default_rng(0)
    made = []
    for n in random.integers(2, 9, count):
        pos = torch.from_numpy(random.standard_normal((n, 3)) * 2)
        near = torch.cdist(pos, pos) < CUTOFF
        near.fill_diagonal_(False)
        made.append(
            Data(
                z=torch.from_numpy(random.integers(1, 9, n)),
                pos=pos,
                edge_index=near.nonzero().t().flip(0).contiguous(),
                y=torch.from_numpy(random.standard_normal((1, 1))),
                force=torch.from_numpy(random.standard_normal((n, 3))),
            )
        )
    return made


def loss(out, data):
    energy, force = out
    return (energy - data.y).square(), (force - data.force).square()


def runner_of(model, batch):
    def both(out, given):
        (slope,) = torch.autograd.grad(out[0].sum(), given.pos, create_graph=True)
        energy, force = loss((out[0], (out[1] - slope) / 2), given)
        per_graph = global_mean_pool(force, given.batch, given.num_graphs)
        return energy + per_graph.mean(1, keepdim=True)

    return sgd_runner(model, [batch.capacity], "auto", both, differentiable=("pos",))


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "one graph"])
def test_forces_and_their_gradients_equal_unpadded_ones(traced):
    model = Forces(layers=2).double()
    plain = copy.deepcopy(model)
    data = Batch.from_data_list(molecules())
    energy, force = plain(data)
    terms = loss((energy, force), data)
    per_graph = global_mean_pool(terms[1], data.batch).mean(1, keepdim=True)
    (mean := (terms[0] + per_graph).mean()).backward()

    store = sg.GraphStore.from_pyg(molecules())
    nodes, edges = (int(total) for total in store.sizes.sum(0))
    batch = sg.StaticBatch.of(store, range(6), (nodes + 9, edges + 50, 11))
    runner = runner_of(model, batch)
    found_energy, found_force = runner(batch)
    assert torch.allclose(found_energy[:6], energy, rtol=0, atol=1e-10)
    assert torch.allclose(found_force[:nodes], force, rtol=0, atol=1e-10)
    assert not found_force[nodes:].any()
    for _ in range(2):
        assert torch.equal(runner.eval_step(batch).out[1], found_force)
        assert torch.allclose(runner.eval_step(batch).loss, mean.detach(), rtol=0, atol=1e-10)
    model.zero_grad()
    if traced:
        computation = runner.steps.computation
        with computation.active():
            trace = trace_step(lambda given: computation.run("step", given), batch)
        assert trace.static, trace
        trace.result.backward()
    else:
        runner.step(batch)
    largest = max(p.grad.abs().max() for p in plain.parameters())
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert (found.grad - expected.grad).abs().max() <= 1e-9 * largest


def test_padding_edges_join_separated_padding_nodes():
    store = sg.GraphStore.from_pyg(molecules())
    nodes, edges = (int(total) for total in store.sizes.sum(0))
    for spare_nodes, spare_edges in ((2, 30), (9, 4), (9, 50)):
        batch = sg.StaticBatch.of(store, range(6), (nodes + spare_nodes, edges + spare_edges, 8))
        source, target = batch.edge_index[:, edges:]
        length = (batch.pos[source] - batch.pos[target]).norm(dim=1)
        assert torch.allclose(length, torch.ones(spare_edges, dtype=length.dtype))
        assert target.min() >= nodes
        assert (target.diff() >= 0).all()
        assert (batch.edge_index[1].diff() >= 0)[edges:].all()


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_a_plan_for_positions_keeps_two_padding_nodes_that_stand_apart(batch_size):
    """Self-loops of a single padding node have length zero, whose second derivative is NaN."""
    store = sg.GraphStore.from_pyg(molecules(12))
    plan = sg.plan_buckets(store, batch_size=batch_size, graphs=4, margin=0.0)
    assert all(capacity.node_reserve == 2 for capacity in plan.capacities)
    assert sg.BucketPlan.from_dict(plan.to_dict()) == plan
    assert plan.with_bucket_for([[99, 400]]).capacities[-1].node_limit >= 99
    largest = int(store.sizes[:, 0].argmax())
    sizes = store.sizes[largest]
    full = sg.Capacity(int(sizes[0]) + 2, int(sizes[1]) + 5, 2, node_reserve=2)
    batch = sg.StaticBatch.of(store, [largest], full)
    assert int((~batch.node_mask).sum()) == 2
    source, target = batch.edge_index[:, ~batch.edge_mask]
    assert (batch.pos[source] - batch.pos[target]).norm(dim=1).min() > 0.5
    short = sg.Capacity(full.nodes - 1, full.edges, 2, node_reserve=2)
    with pytest.raises(sg.errors.GraphTooLarge):
        sg.StaticBatch.of(store, [largest], short)
    model = Forces(layers=2).double()
    runner = runner_of(model, batch)
    assert torch.isfinite(runner.step(batch))
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


class Detached(nn.Module):
    """Differentiates by a detached copy made in the forward, a common way to write it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 1)

    def forward(self, pos, batch):
        pos = pos.detach().requires_grad_(True)
        energy = global_mean_pool(self.lin(pos).sin(), batch)
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy, -gradient


def test_a_derivative_by_a_copy_is_told_what_to_write():
    """torch's own error names neither the line nor an applicable remedy."""
    store = sg.GraphStore.from_pyg(molecules())
    model, capacity = Detached().double(), (40, 200, 5)
    assert 'differentiable=("pos",)' in str(sg.check(model, [capacity], store))
    runner = made_runner(
        model, [capacity], "fused", rows={0: "graph", 1: "node"}, check_padding=False
    )
    with pytest.raises(sg.NotStatic, match="ask it of the input itself"):
        runner(sg.StaticBatch.of(store, [0, 1, 2], capacity))
