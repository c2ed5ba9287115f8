"""What backward runs again sees the batch that the forward saw."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
import torch_geometric.nn as pyg
from support.alike import assert_same_gradients
from support.runners import sgd_runner
from support.threaded import GRAPHS, STORE, Elsewhere, Net, batch_of, loss, runner_of
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import global_mean_pool

import staticgraph as sg
from staticgraph.runner.ways import Auto


class Checkpointed(Net):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self._reentrant = reentrant

    def forward(self, x, edge_index, batch):
        h = self.first(x, edge_index)

        def inner(h):
            return self.again(self.second(self.norm(h), edge_index))

        h = torch.utils.checkpoint.checkpoint(inner, h, use_reentrant=self._reentrant)
        return self.head(global_mean_pool(h, batch)).view(-1)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", ["step", "own loop", "another thread", "inside another"])
def test_checkpointing_runs_its_layers_again_over_the_batch_of_the_forward(reentrant, how):
    """In whichever thread backward runs (on CUDA it is autograd's), and after another forward."""
    theirs, ours = Checkpointed(reentrant), Checkpointed(reentrant)
    data = Batch.from_data_list(GRAPHS[:10])
    loss(theirs(data.x, data.edge_index, data.batch), data).mean().backward()
    runner = runner_of(ours, clip_norm=None)
    batch = batch_of()
    runner.optimizer.param_groups[0]["lr"] = 0.0

    def own_loop() -> None:
        mean = loss(runner(batch), batch)[batch.graph_mask].mean()
        other = runner_of(Net(5))
        other(batch_of(10))
        if how == "another thread":
            work = Elsewhere(mean.backward)
            work.start()
            work.result()
        elif how == "inside another":
            outer = runner_of(Net(6, middle=mean.backward))
            outer.eval_step(batch_of(10))
        else:
            mean.backward()

    runner.step(batch) if how == "step" else own_loop()
    assert_same_gradients(ours, theirs, rtol=1e-09, atol=1e-12)


POOLINGS = {
    "topk": lambda: pyg.TopKPooling(6, ratio=0.5),
    "sag": lambda: pyg.SAGPooling(6, ratio=0.5),
    "score": lambda: pyg.TopKPooling(6, min_score=0.1),
}


class CheckpointedPools(nn.Module):
    """Two blocks, each with its own pool, that backward runs again in reverse order."""

    def __init__(self, pooling: str, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self._reentrant = reentrant
        self.first = pyg.GCNConv(4, 6)
        self.pools = nn.ModuleList(POOLINGS[pooling]() for _ in range(2))
        self.convs = nn.ModuleList(pyg.GCNConv(6, 6) for _ in range(2))  # loops over pooled edges
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(2))
        self.head = nn.Linear(6, 1)
        self.double()

    def block(self, number: int, h, edge_index, batch):
        h, edge_index, _, batch, *_ = self.pools[number](h, edge_index, batch=batch)
        return self.norms[number](self.convs[number](h, edge_index)).tanh(), edge_index, batch

    def forward(self, x, edge_index, batch, batch_size):
        h, groups = self.first(x, edge_index), batch
        for number in range(2):
            h, edge_index, groups = torch.utils.checkpoint.checkpoint(
                self.block, number, h, edge_index, groups, use_reentrant=self._reentrant
            )
        return self.head(global_mean_pool(h, groups, batch_size)).view(-1)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_pool_that_runs_again_has_the_rows_it_had(pooling, reentrant):
    """In the forward its row count had no meaning yet; when the pool runs again, it already stands
    for the pool's own rows."""
    theirs, ours = (CheckpointedPools(pooling, reentrant) for _ in range(2))
    data = Batch.from_data_list(GRAPHS[:10])
    loss(theirs(data.x, data.edge_index, data.batch, 10), data).mean().backward()
    runner = runner_of(ours)
    runner.optimizer.param_groups[0]["lr"] = 0.0
    runner.step(batch_of())
    assert_same_gradients(ours, theirs, rtol=1e-09, atol=1e-12)


def test_a_kept_output_keeps_no_slot_of_the_loader():
    runner = runner_of(Net())
    kept = [runner(batch) for batch in sg.StaticLoader(STORE, runner.plan, slots=2)]
    assert len(kept) == 2


def checkpointed_runner(mode, norm):
    """A runner of a model whose checkpointed block ends in ``norm``, on the thread tests' data."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            width = GRAPHS[0].x.size(1)
            self.first, self.norm = nn.Linear(width, 4), norm(4)

        def forward(self, x, batch):
            h = torch.utils.checkpoint.checkpoint(
                lambda x: self.norm(self.first(x)).relu(), x.float(), use_reentrant=False
            )
            return global_mean_pool(h, batch)

    torch.manual_seed(0)
    model = Block()
    plan = sg.plan_buckets(STORE, batch_size=4)
    return sgd_runner(model, plan, mode, loss=lambda out, batch: out.square(), rate=0.1)


def test_a_fused_step_refuses_a_checkpointed_norm_by_line_and_leaves_its_statistics():
    runner = checkpointed_runner("fused", nn.BatchNorm1d)
    batch = next(iter(runner.loader(STORE)))
    with pytest.raises(sg.NotStatic, match=r"(?s)checkpointing .*test_checkpointing.py:\d+.*eager"):
        runner.step(batch)
    assert float(runner.model.norm.running_mean.abs().max()) == 0
    assert int(runner.model.norm.num_batches_tracked) == 0


def test_a_fused_step_checkpoints_what_writes_nothing():
    fused, eager = (checkpointed_runner(mode, nn.LayerNorm) for mode in ("fused", "eager"))
    for batch in fused.loader(STORE):
        assert torch.allclose(fused.step(batch), eager.step(batch), rtol=1e-5)


def test_auto_goes_on_without_a_way_that_fails():
    """The error of a way that is only being tried does not end the warm-up."""
    runner = checkpointed_runner(Auto(rounds=5), nn.BatchNorm1d).warmup(STORE)
    step = next(choice for choice in runner.report().choices if choice.phase == "step")
    assert step.way == "eager"
    assert "activation checkpointing" in str(step)
