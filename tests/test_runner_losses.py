"""The loss of a runner: one value per row, averaged over real and labelled rows."""

from __future__ import annotations

import traceback
from unittest import TestCase

import pytest
import torch
from support.alike import squared
from support.linear_net import Linear
from support.runners import sgd_runner
from torch._subclasses import fake_tensor
from torch_geometric.data import Batch
from torch_geometric.utils import unbatch

import staticgraph as sg
from staticgraph.steps.loss.mean_loss import mean_loss


@pytest.fixture(scope="module")
def plan(hiv):
    return sg.plan_buckets(hiv, batch_size=32)


@pytest.fixture(scope="module")
def batch(hiv, plan):
    return sg.StaticBatch.of(hiv, range(30), plan.capacities[0])


@pytest.mark.parametrize("level", ["graph", "node", "edge"])
def test_the_loss_is_the_mean_over_real_rows(hiv, plan, batch, level):
    model = Linear(level)
    runner = sg.StaticGraphRunner(model, plan, loss=lambda out, _: out.square())
    data = Batch.from_data_list(hiv[:30])
    expected = model(data.x, data.edge_index, data.batch, 30).square().mean()
    # Sums of at most a few thousand float32 squares: eps times their number bounds the error.
    found = runner.eval_step(batch).loss
    assert torch.allclose(found, expected, rtol=2000 * torch.finfo(torch.float32).eps)


def losing(loss, plan, mode="eager"):
    model = Linear()
    return sgd_runner(model, plan, mode, loss=loss, rate=0.1)


def test_torchs_log_does_not_repeat_the_error(plan, batch):
    with TestCase().assertNoLogs(fake_tensor.log), pytest.raises(sg.NotStatic, match="broadcast"):
        losing(lambda out, _: out[1:] - out[:-2], plan, "fused").step(batch)


def test_what_torch_cannot_compile_is_said_in_few_lines(plan, batch):
    """Torch's own message fills a page and is kept as the exception's context."""

    def loss(out, batch):
        return out[:, 0] if out.sum() > 0 else out[:, 1]  # the line

    with pytest.raises(sg.NotStatic) as refused:
        losing(loss, plan, "default").step(batch)
    first, why, line, remedy, more = str(refused.value).splitlines()
    assert first.endswith("step train cannot be compiled in fixed shapes:")
    assert why.startswith("Data-dependent branching")
    assert "test_runner_losses.py:" in line
    assert line.endswith("# the line")
    assert "mode='eager'" in remedy
    assert "__context__" in more
    shown = "".join(traceback.format_exception(refused.value))
    assert "TORCHDYNAMO_VERBOSE" not in shown
    assert "TORCHDYNAMO_VERBOSE" in str(refused.value.__context__)


def test_sizes_read_from_data_are_said_in_few_lines(plan, batch):
    """torch raises no error of its tracer for these, but one of its symbols."""

    def loss(out, batch):
        counts = torch.bincount(batch.batch, minlength=batch.num_graphs)
        parts = batch.x.float().split(counts.tolist())  # the line
        return out[:, 0] + torch.stack([part.sum() for part in parts])

    with pytest.raises(sg.NotStatic) as refused:
        losing(loss, plan, "default").step(batch)
    _, why, line, remedy, _ = str(refused.value).splitlines()
    assert "data-dependent" in why
    assert line.endswith("# the line")
    assert remedy.startswith("a number or a size here follows from data: give sizes")


def test_a_line_that_reads_many_numbers_is_named_once(plan, batch):
    def loss(out, batch):
        return out[:, 0] * sum(batch.batch[:8].tolist())  # the line

    with pytest.raises(sg.NotStatic, match="numbers that depend on data") as refused:
        losing(loss, plan, "default").step(batch)
    assert str(refused.value).count("# the line") == 1


def test_what_has_no_static_form_in_any_mode_is_not_sent_to_eager(plan, batch):
    def loss(out, batch):
        return out[:, 0] + torch.stack([part.sum() for part in unbatch(batch.x, batch.batch)])

    with pytest.raises(sg.NotStatic, match="unbatch has no static form") as refused:
        losing(loss, plan, "default").step(batch)
    assert "mode='eager'" not in str(refused.value)


def test_a_loss_that_is_none_a_row_is_named(plan, batch):
    with pytest.raises(TypeError, match="the loss gives a NoneType: return a tensor"):
        losing(lambda out, batch: None, plan).step(batch)
    with pytest.raises(sg.NotStatic, match=r"\nthe loss raises ValueError\(.the loss"):
        losing(lambda out, batch: out.mean(), plan, "default").step(batch)

    class One(Linear):
        def forward(self, x, edge_index, batch, num_graphs):
            return super().forward(x, edge_index, batch, num_graphs)[:, :1]

    model = One()
    flat = sgd_runner(model, plan, loss=lambda o, b: o - b.y.view(-1), rate=0.1)
    with pytest.raises(ValueError, match=r"shape \[33, 1\] has the shape \[33, 33\].*squeeze"):
        flat.step(batch)


def test_a_loss_without_a_gradient_is_named(plan, batch):
    with pytest.raises(ValueError, match="the loss depends on nothing that is trained"):
        losing(lambda out, _: (out > 0).float(), plan).step(batch)


def test_rows_of_one_level_against_targets_of_another(esol):
    """[G, 1] minus [N] has shape [G, N], whose mean would look like any other number."""
    graphs = esol[:40]
    for graph in graphs:
        graph.y = graph.x[:, 0].float()  # a target per node
    store = sg.GraphStore.from_pyg(graphs)
    plan = sg.plan_buckets(store, batch_size=8)
    batch = next(iter(sg.StaticLoader(store, plan)))
    out = torch.zeros(len(batch.graph_mask), 1)
    with pytest.raises(ValueError, match="a row per graph, and the target has a row per node"):
        mean_loss(squared, out, batch)
    # Several numbers per row, even from a single output, are fine.
    levels = torch.linspace(0, 1, 5)
    assert mean_loss(lambda out, batch: (out - levels).abs(), out, batch) == levels.mean()
