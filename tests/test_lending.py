"""Outputs of recordings: small ones are copies, large ones are lent and say when they are stale."""

from __future__ import annotations

import pytest
import torch
from support.gine_net import CAPACITIES, Net, batches_of
from support.tape import TapeRecorder
from torch import nn

import staticgraph as sg
from staticgraph.errors import StaleOutput
from staticgraph.recording import lending
from staticgraph.recording.lending import LentTensor, handed_out
from staticgraph.recording.recorder import Recorded


class Nodes(nn.Module):
    """A row a node, and a row a graph beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(9, 16)

    def forward(self, x, batch, batch_size):
        h = self.linear(x.float())
        return {"nodes": h, "graphs": torch.zeros(batch_size, 16).index_add(0, batch, h)}


@pytest.fixture
def limit(monkeypatch):
    """Between a row a graph (33 x 16 floats) and a row a node (900 x 16)."""
    monkeypatch.setattr(lending, "CLONED_BYTES", 4096)


def runner_of(model, hiv):
    runner = sg.StaticGraphRunner(
        model, CAPACITIES, "cuda-graph", recording=sg.Recording(recorder=TapeRecorder)
    )
    return runner.warmup(hiv, progress=False)


def test_an_output_held_over_a_step_is_an_error(hiv, limit):
    runner = runner_of(Nodes(), hiv)
    first, other, second = batches_of(hiv, 3)
    with torch.no_grad():
        runner.model.eval()
        out = runner(first)
        nodes, kept, view, product = (
            out["nodes"],
            out["nodes"].clone(),
            out["nodes"][:10, 2:].t(),
            out["nodes"] * 2,
        )
        assert isinstance(nodes, torch.Tensor)
        real = first.node_mask
        expected = runner.model.linear(first.x.float())[real]
        assert torch.equal(nodes[real], expected)
        runner(other)  # another bucket's recording writes elsewhere
        assert torch.equal(nodes[real], expected)
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
            with pytest.raises(StaleOutput, match=r"ran 1 more times.*out\.clone\(\)"):
                use()
        assert nodes.shape == (900, 16)
        assert repr(nodes) == "LentTensor(stale, shape=[900, 16], dtype=torch.float32)"
        assert torch.equal(kept[real], expected)
        assert torch.equal(product[real], 2 * expected)
        assert torch.equal(out["graphs"], runner(first)["graphs"]), "small, so a copy"
        assert not isinstance(out["graphs"], LentTensor)


def test_what_is_computed_from_it_is_an_ordinary_tensor(limit):
    value = torch.randn(100, 16)
    lent = handed_out(value, Recorded(lambda: None, value))
    for made in (lent + 1, lent.clone(), lent.sum(), lent[lent[:, 0] > 0], torch.cat([lent, lent])):
        assert type(made) is torch.Tensor
    for view in (lent[3], lent.t(), lent.detach(), lent.view(-1), lent.unbind()[0]):
        assert type(view) is LentTensor
    assert torch.equal(lent.sum(), value.sum())
    assert lent.to(torch.float64).dtype is torch.float64


def test_the_limit_is_in_bytes(limit):
    small, large = torch.zeros(1024), torch.zeros(1025)
    results = handed_out([small, (large, 7)], Recorded(lambda: None, None))
    assert type(results[0]) is torch.Tensor
    assert results[0].data_ptr() != small.data_ptr()
    assert type(results[1][0]) is LentTensor
    assert results[1][0].data_ptr() == large.data_ptr()
    assert results[1][1] == 7


def test_predictions_of_nodes_read_each_output_in_time(hiv, limit):
    torch.manual_seed(0)

    class Alone(Nodes):
        def forward(self, x, batch, batch_size):
            return super().forward(x, batch, batch_size)["nodes"]

    model = Alone()
    graphs = [hiv[i] for i in range(60)]
    found = runner_of(model, hiv).predict(graphs)
    for piece, graph in zip(found, graphs, strict=True):
        assert torch.allclose(piece, model.linear(graph.x.float()), atol=1e-5)


def test_losses_are_copies(hiv, monkeypatch):
    """Whatever the limit, evaluation's loss is made of the output and belongs to the caller."""
    monkeypatch.setattr(lending, "CLONED_BYTES", 64)
    model = Net()
    runner = sg.StaticGraphRunner(
        model,
        CAPACITIES,
        "cuda-graph",
        loss=lambda out, batch: (out - batch.y).square(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0, fused=True),
        recording=sg.Recording(recorder=TapeRecorder),
    ).warmup(hiv, progress=False)
    first, _, second = batches_of(hiv, 3)
    result, loss = runner.eval_step(first), runner.step(first)
    values = float(result.loss), float(loss)
    runner.step(second)
    runner.eval_step(second)
    assert (float(result.loss), float(loss)) == values
    with pytest.raises(StaleOutput):
        result.out.sum()
