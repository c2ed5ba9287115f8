"""Buckets of mode ``fused`` share one trace, and none that a bucket does not fit."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.alike import assert_same_state
from support.runners import sgd_runner
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool

import staticgraph as sg
from staticgraph.batches.slots.sizes import sizes_of
from staticgraph.errors import NotStatic
from staticgraph.internals.tracing import counters
from staticgraph.sizes.capacity import Capacity

SIZES = [(300, 640, 17, 60), (500, 1100, 17, 61), (700, 1500, 25, 70)]
PLAN = sg.BucketPlan.of(SIZES, batch_size=16)


class PerNode(nn.Module):
    """A number for every node, from a model in which no layer asks what its rows are."""

    columns = 9

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(self.columns, 1)

    def forward(self, x):
        return self.head(x.double())


class PerEdge(PerNode):
    """A number for every edge."""

    columns = 3

    def forward(self, edge_attr):
        return self.head(edge_attr.double())


class Checkpointed(PerNode):
    """Its layer is run again by a backward."""

    def forward(self, x):
        return checkpoint(lambda rows: self.head(rows).relu(), x.float(), use_reentrant=False)


class Net(nn.Module):
    """A GINE with a norm, whose forward may look at the sizes of a batch.

    Args:
        above: rows are doubled in batches of more nodes.
        attention: whether all nodes of a graph attend to one another.
    """

    def __init__(self, above: int | None = None, attention: bool = False) -> None:
        super().__init__()
        self.above, self.scale = above, 1.0
        self.nodes, self.edges = nn.Linear(9, 16), nn.Linear(3, 16)
        self.conv, self.norm = GINEConv(nn.Linear(16, 16)), nn.BatchNorm1d(16)
        self.attention = GPSConv(16, None, heads=2) if attention else None
        self.head = nn.Linear(16, 1)

    def forward(self, x, edge_index, edge_attr, batch, num_graphs):
        rows = self.nodes(x.double())
        rows = self.norm(self.conv(rows, edge_index, self.edges(edge_attr.double())))
        if self.above is not None and x.size(0) > self.above:
            rows = 2 * rows
        if self.attention is not None:
            rows = self.attention(rows, edge_index, batch)
        return self.scale * self.head(global_add_pool(rows.relu(), batch, size=num_graphs))


def squares(out, batch):
    return F.mse_loss(out, batch.y.double(), reduction="none")


def runner_of(model, mode="fused"):
    return sgd_runner(model, PLAN, mode, loss=squares, rate=1e-4)


def batches_of(store, graphs=8):
    """A batch of every bucket."""
    capacities = enumerate(PLAN.capacities)
    return [sg.StaticBatch.of(store, range(graphs), each, number) for number, each in capacities]


def trained(model, store, mode):
    """A runner after two steps and an evaluation in every bucket, and all losses."""
    runner, losses = runner_of(model, mode).warmup(store), []
    for first, second in zip(batches_of(store), batches_of(store, 11), strict=True):
        losses += [runner.step(first).clone(), runner.step(second).clone()]
        losses.append(runner.eval_step(first).loss.clone())
    return runner, losses


@pytest.mark.parametrize(
    ("options", "traces"),
    [({}, 2), ({"above": 400}, 4), ({"attention": True}, 2)],
    ids=["any sizes", "a branch", "attention"],
)
def test_buckets_share_what_fits_them_and_compute_what_eager_does(esol, options, traces):
    model = Net(**options).double()
    plain = copy.deepcopy(model)
    before = counters["stats"]["unique_graphs"]
    runner, losses = trained(model, esol, "fused")
    assert counters["stats"]["unique_graphs"] - before == traces
    assert [bucket.compiles for bucket in runner.report().buckets] == [2, 2, 2]
    near = {"rtol": 1e-11, "atol": 1e-11}
    torch.testing.assert_close(losses, trained(plain, esol, "eager")[1], **near)
    assert_same_state(model, plain, **near)


def test_padding_rows_of_an_output_are_zero_in_every_bucket(esol):
    model = PerNode().double()
    runner = sg.StaticGraphRunner(model, PLAN, mode="fused")
    before = counters["stats"]["unique_graphs"]
    for batch in batches_of(esol):
        out = runner.eval_step(batch).out
        torch.testing.assert_close(out[batch.node_mask], model(batch.x[batch.node_mask]))
        assert not out[~batch.node_mask].any()
    assert counters["stats"]["unique_graphs"] - before == 1


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_a_bucket_of_one_edge_is_traced_alone(esol, order):
    """A size of one broadcasts, so a trace takes its symbols to be larger."""
    plan = sg.BucketPlan.of([(40, 1, 9, 10), (300, 640, 17, 60)], batch_size=8)
    runner = sg.StaticGraphRunner(PerEdge().double(), plan, mode="fused")
    single = [graph for graph in range(len(esol)) if esol[graph].num_edges == 0][:2]
    before = counters["stats"]["unique_graphs"]
    for bucket in order:
        batch = sg.StaticBatch.of(esol, (single, range(8))[bucket], plan.capacities[bucket], bucket)
        out = runner.eval_step(batch).out
        expected = runner.model(batch.edge_attr[batch.edge_mask])
        torch.testing.assert_close(out[batch.edge_mask], expected)
    assert counters["stats"]["unique_graphs"] - before == 2


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_a_checkpointed_part_is_traced_per_bucket_and_leaves_autocast_as_it_was(esol, precision):
    model = Checkpointed()
    runner = sg.StaticGraphRunner(model, PLAN, mode="fused", autocast=precision)
    plain = sg.StaticGraphRunner(copy.deepcopy(model), PLAN, mode="eager", autocast=precision)
    before = counters["stats"]["unique_graphs"]
    for batch in batches_of(esol):
        torch.testing.assert_close(runner.eval_step(batch).out, plain.eval_step(batch).out)
        assert not torch.is_autocast_enabled("cpu")
        # Inside another level, an autocast of the caller's would not drop its casts at its end.
        assert torch.autocast_increment_nesting() == torch.autocast_decrement_nesting() + 1 == 1
    assert counters["stats"]["unique_graphs"] - before == len(SIZES)


def test_a_changed_model_is_refused_in_every_bucket(esol):
    model = Net().double()
    runner, _ = trained(model, esol, "fused")
    model.scale = 2.0
    for batch in batches_of(esol):
        with pytest.raises(NotStatic, match="scale"):
            runner.step(batch)


def test_a_bucket_that_comes_after_a_change_is_traced_alone(esol):
    model = Net().double()
    runner, (first, second, _) = runner_of(model), batches_of(esol)
    runner.step(first)
    model.scale = 2.0
    plain = copy.deepcopy(model)
    loss, expected = runner.step(second), runner_of(plain, "eager").step(second)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-11)


def test_a_trace_draws_no_numbers_and_leaves_no_mark(esol):
    runner, batches, state = runner_of(Net().double()), batches_of(esol), torch.get_rng_state()
    for batch in batches:
        runner.step(batch)
        assert not any(hasattr(a, "_dynamo_weak_dynamic_indices") for a in batch.tensors().values())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_product_of_sizes_may_exceed_63_bits():
    capacity = Capacity(1_000_000, 10_000_000, 100_000, 999)
    sizes_of(capacity)
