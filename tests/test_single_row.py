"""BatchNorm over one real row is refused, as in torch, where the count is known; elsewhere the
running statistics stay, because one value says nothing about the variance of others."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import assert_same_state
from support.gine_net import fixed
from support.graphs import drawn_graphs
from support.places import mode_of
from support.runners import sgd_runner
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch_geometric.nn import BatchNorm, TopKPooling, global_add_pool

import staticgraph as sg
from staticgraph.nn.norm.batch_norm import SINGLE, flag_single_rows
from staticgraph.steps.state.training_state import untouched

CAPACITY = (12, 20, 4)


@pytest.fixture(scope="module")
def store():
    fields = {"x": ("node", 3), "y": ("graph",)}
    return sg.GraphStore.from_pyg(drawn_graphs((1, 3, 4), dtype=torch.float32, **fields))


class Net(nn.Module):
    """A norm over graphs or over nodes."""

    def __init__(self, level: str, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.level = level
        self.norm = nn.BatchNorm1d(3) if norm is None else norm

    def forward(self, x, batch, batch_size):
        if self.level == "node":
            return global_add_pool(self.norm(x), batch, batch_size)
        return self.norm(global_add_pool(x, batch, batch_size))


def loss_of(out, batch):
    return (out.sum(1) - batch.y).square()


def runner_of(store, model, mode="eager", kernels=False):
    """A warmed-up runner, except in mode ``default``, where Inductor would also compile an
    evaluation that no test needs."""
    sg.convert(model, kernels=kernels)
    runner = sgd_runner(model, [CAPACITY], mode, loss=loss_of, scope="forward_backward")
    return runner if mode == "default" else runner.warmup(store)


def batch_of(store, ids):
    return sg.StaticBatch.of(store, ids, CAPACITY, pointers=True)


def unknown(store, ids):
    """A batch that does not say how many rows are real, as a compiled step sees it."""
    return fixed(batch_of(store, ids))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kernels", [False, True], ids=["stock", "kernels"])
@pytest.mark.parametrize("mode", ["eager", "traced", "cuda-graph"])
@pytest.mark.parametrize("level", ["graph", "node"])
def test_one_real_row_is_refused_as_torch_refuses_it(store, level, mode, kernels, monkeypatch):
    """On the host, before anything compiled runs."""
    mode = mode_of(mode, monkeypatch)
    model = Net(level)
    stock = copy.deepcopy(model)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        stock(store[0].x, torch.zeros(1, dtype=torch.int64), 1)
    runner = runner_of(store, model, mode, kernels)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        ValueError, match=r"expected more than 1 value per channel.*indices="
    ) as said:
        runner.step(batch_of(store, [0]))
    assert mode == "eager" or f"norm, over {level} rows" in str(said.value)
    assert_same_state(model, before)
    runner.step(batch_of(store, [0, 1]))
    runner.eval_step(batch_of(store, [0]))  # the running statistics work for any number of rows


@pytest.mark.filterwarnings("error")
def test_two_real_rows_and_discarded_flags_are_not_reported(store):
    model = Net("graph")
    runner = runner_of(store, model)
    runner.step(unknown(store, [1, 2]))
    runner.check_finite()
    flag_single_rows(model.norm, torch.device("cpu"))
    getattr(model.norm, SINGLE).fill_(True)
    runner.steps.finite.clear()
    runner.check_finite()


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("mode", ["eager", "traced", "cuda-graph"])
def test_where_the_count_is_not_known_statistics_stay(store, mode, kernels, monkeypatch):
    mode = mode_of(mode, monkeypatch)
    model = Net("graph")
    runner = runner_of(store, model, mode, kernels)
    batch = unknown(store, [1])
    before = copy.deepcopy(model.state_dict())
    assert bool(torch.isfinite(runner.step(batch)))
    assert_same_state(model, before)
    runner.step(unknown(store, [1, 2]))
    assert int(model.norm.num_batches_tracked) == 1
    assert not torch.equal(model.norm.running_var, before["norm.running_var"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["fused", "auto"])
def test_a_warm_up_over_graphs_needs_no_two_of_them_first(mode):
    fields = {"x": ("node", 3), "y": ("graph",)}
    store = sg.GraphStore.from_pyg(drawn_graphs((8, 5, 2, 1), dtype=torch.float32, **fields))
    runner_of(store, Net("graph"), mode)
    if mode == "fused":
        runner_of(batch_of(store, [0]), Net("graph"), mode)


class Chosen(nn.Module):
    """A norm over the nodes that a pool selects: one node from a graph of one or two."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = TopKPooling(3, ratio=0.5)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x, edge_index, batch, batch_size):
        x, _, _, batch, *_ = self.pool(x, edge_index, batch=batch)
        return global_add_pool(self.norm(x), batch, batch_size)


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("mode", ["eager", "traced", "cuda-graph"])
def test_rows_that_a_pool_chose_are_flagged_on_the_device(store, mode, monkeypatch):
    """The batch knows its number of nodes, but not how many of them a pool selects."""
    mode = mode_of(mode, monkeypatch)
    model = Chosen()
    runner = runner_of(store, model, mode)
    assert "single" not in "".join(model.state_dict()), "the flag is no part of the state"
    runner.step(batch_of(store, [1, 2]))
    runner.check_finite()
    assert int(model.norm.num_batches_tracked) == 1
    runner.step(batch_of(store, [0]))
    assert int(model.norm.num_batches_tracked) == 1
    with pytest.warns(UserWarning, match="^norm: had one real row .* left alone"):
        runner.check_finite()
    runner.step(batch_of(store, [0]))
    runner.check_finite()  # warns only once


def test_pygs_own_choice_for_a_single_row_stays(store, monkeypatch):
    model = Net("graph", BatchNorm(3, allow_single_element=True))
    for mode in ("eager", mode_of("traced", monkeypatch)):
        runner = runner_of(store, copy.deepcopy(model), mode)
        before = runner.model.norm.module.running_var.clone()
        runner.step(batch_of(store, [1]))
        assert torch.equal(before, runner.model.norm.module.running_var)


class Pooling(nn.Module):
    """Norms over rows that a pool selects."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = TopKPooling(3, 0.9)
        self.norms = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3))

    def forward(self, x, edge_index, batch, batch_size):
        x, _, _, batch, _, _ = self.pool(x, edge_index, batch=batch)
        return global_add_pool(self.norms(x), batch, batch_size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["eager", "traced", "cuda-graph"])
def test_a_twin_made_before_has_the_same_buffers(store, mode, monkeypatch):
    """``AveragedModel(use_buffers=True)`` and others pair them by their order."""
    model = Pooling()
    averaged = AveragedModel(model, avg_fn=lambda mean, value, count: value, use_buffers=True)
    runner = runner_of(store, model, mode_of(mode, monkeypatch))
    runner.step(batch_of(store, [0, 1, 2]))
    averaged.update_parameters(model)
    averaged.update_parameters(model)
    assert SINGLE in vars(model.norms[0])
    assert model.norms[0].running_mean.any()
    assert_same_state(averaged.module, model)
    flag = getattr(model.norms[0], SINGLE)
    with untouched(model):
        flag.fill_(True)
    assert not flag, "as a buffer of the model's own"
    obstacles = sg.check(model, [CAPACITY], store).obstacles
    assert not any(SINGLE in obstacle.operation for obstacle in obstacles)
