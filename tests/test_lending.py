"""Outputs of recordings: small ones are copies, large ones are lent and raise once stale."""

from __future__ import annotations

import pytest
import torch
from support.alike import sgd
from support.gine_net import CAPACITIES, Net, batches_of
from support.runners import made_runner, sgd_runner
from torch import nn

import staticgraph as sg
from staticgraph.errors import StaleOutput
from staticgraph.recording import lent_outputs
from staticgraph.recording.graph_recorder import Replays
from staticgraph.recording.lent_outputs import LentTensor, handed_out


class Nodes(nn.Module):
    """Outputs one row per node and one row per graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 16)

    def forward(self, x, batch, batch_size):
        h = self.linear(x.float())
        return {"nodes": h, "graphs": torch.zeros(batch_size, 16).index_add(0, batch, h)}


@pytest.fixture
def limit(monkeypatch):
    """Between one row per graph (33 x 16 floats) and one row per node (900 x 16)."""
    monkeypatch.setattr(lent_outputs, "CLONED_BYTES", 4096)


def runner_of(model, hiv):
    return made_runner(model, CAPACITIES, "cuda-graph").warmup(hiv)


def test_an_output_held_over_a_step_is_an_error(hiv, limit):
    runner = runner_of(Nodes(), hiv)
    first, _, second = batches_of(hiv, 3)
    with torch.no_grad():
        runner.model.eval()
        out = runner(first)
        nodes = out["nodes"]
        kept, view, product = nodes.clone(), nodes[:10, 2:].t(), nodes * 2
        assert isinstance(nodes, torch.Tensor)
        real = first.node_mask
        expected = runner.model.linear(first.x.float())[real]
        assert torch.equal(nodes[real], expected)
        assert torch.equal(view, nodes[:10, 2:].t())
        runner(second)
        for use in (
            lambda: nodes + 1,
            lambda: nodes[real],
            lambda: nodes.clone(),
            lambda: torch.stack([nodes]),
            lambda: view.sum(),
            lambda: torch.zeros(900, 16).copy_(nodes),
            lambda: nodes.numpy(),
        ):
            with pytest.raises(StaleOutput, match=r"ran 1 more time .*share.*out\.clone\(\)"):
                use()
        assert nodes.shape == (900, 16)
        assert repr(nodes) == "LentTensor(stale, shape=[900, 16], dtype=torch.float32)"
        assert torch.equal(kept[real], expected)
        assert torch.equal(product[real], 2 * expected)
        assert torch.equal(out["graphs"], runner(first)["graphs"]), "small, so a copy"
        assert not isinstance(out["graphs"], LentTensor)


@pytest.mark.parametrize("role", ["eval", "step"])
@pytest.mark.parametrize("bucket", [0, 1])
def test_any_other_recording_may_write_there(hiv, limit, bucket, role):
    """Two buckets, both roles, one pool: whichever ran since, the output is refused; and earlier
    recordings do write to the memory of the last recording's output."""
    model = Nodes()
    runner = made_runner(
        model,
        CAPACITIES,
        "cuda-graph",
        loss=lambda out, batch: out["graphs"].square().mean(1, keepdim=True),
        optimizer=sgd(model, 0.1, fused=True),
        check_padding=False,
    ).warmup(hiv)
    first, other = batches_of(hiv, 2)
    lent = runner.eval_step(first).out["nodes"]
    with torch._C.DisableTorchFunctionSubclass():
        memory = lent.as_subclass(torch.Tensor)
    kept = memory.clone()
    batch = (first, other)[bucket]
    runner.eval_step(batch) if role == "eval" else runner.step(batch)
    with pytest.raises(StaleOutput, match=r"recordings ran 1 more time since"):
        lent.sum()
    if (bucket, role) != (0, "eval"):
        assert not torch.equal(memory, kept), "bucket 0's evaluation was recorded last"


def test_a_batch_that_is_made_by_a_recording_ends_a_loan(esol, limit):
    """Collation has recordings of its own, in the same pool."""
    model = Nodes()
    plan = sg.BucketPlan.of([(410, 850, 31)])
    runner = made_runner(model, plan, "cuda-graph", one_launch=False)
    moved = esol.to("cpu")
    runner.warmup(moved)
    batches = iter(sg.StaticLoader(moved, plan, exact=False))
    lent = runner.eval_step(next(batches)).out["nodes"]
    recorded = runner.steps.recorded
    assert recorded._inputs.collation.fill(0, next(batches)._tensors)
    with pytest.raises(StaleOutput):
        lent.sum()


def test_what_is_computed_from_it_is_an_ordinary_tensor(limit):
    value = torch.randn(100, 16)
    lent = handed_out(value, Replays())
    for made in (lent + 1, lent.clone(), lent.sum(), lent[lent[:, 0] > 0], torch.cat([lent, lent])):
        assert type(made) is torch.Tensor
    for view in (lent[3], lent.t(), lent.detach(), lent.view(-1), lent.unbind()[0]):
        assert type(view) is LentTensor
    assert torch.equal(lent.sum(), value.sum())
    assert lent.to(torch.float64).dtype is torch.float64


def test_the_limit_is_in_bytes(limit):
    small, large = torch.zeros(1024), torch.zeros(1025)
    results = handed_out([small, (large, 7)], Replays())
    assert type(results[0]) is torch.Tensor
    assert results[0].data_ptr() != small.data_ptr()
    assert type(results[1][0]) is LentTensor
    assert results[1][0].data_ptr() == large.data_ptr()
    assert results[1][1] == 7


def test_predictions_of_nodes_read_each_output_in_time(hiv, limit):

    class Alone(Nodes):
        def forward(self, x, batch, batch_size):
            return super().forward(x, batch, batch_size)["nodes"]

    model = Alone()
    graphs = hiv[:60]
    found = runner_of(model, hiv).predict(graphs)
    for piece, graph in zip(found, graphs, strict=True):
        assert torch.allclose(piece, model.linear(graph.x.float()), atol=1e-5)


def test_losses_are_copies(hiv, monkeypatch):
    """Whatever the limit, losses, also evaluation's, belong to the caller."""
    monkeypatch.setattr(lent_outputs, "CLONED_BYTES", 64)
    runner = sgd_runner(Net(), CAPACITIES, "cuda-graph").warmup(hiv)
    first, _, second = batches_of(hiv, 3)
    result, loss = runner.eval_step(first), runner.step(first)
    values = float(result.loss), float(loss)
    runner.step(second)
    runner.eval_step(second)
    assert (float(result.loss), float(loss)) == values
    with pytest.raises(StaleOutput):
        result.out.sum()
