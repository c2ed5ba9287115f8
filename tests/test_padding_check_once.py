"""When padding is checked, how often, and that the check changes nothing."""

from __future__ import annotations

import copy
import gc
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.alike import adam, same, squared
from support.hetero_graphs import from_molecule
from support.layer_cases import C
from support.parity import BATCH, CAPACITY, MANY, MANY_PLAN, STORE
from support.probes import (
    PLAN,
    ByName,
    CountedNodes,
    Mean,
    Probe,
    make_model,
    runner_of,
    with_norm,
)
from support.runners import sgd_runner
from torch import nn

import staticgraph as sg
from staticgraph.checking.example_batch import portion_of


class Counts(Probe):
    """Touches all that a forward may touch: attributes, rebound buffers, random numbers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(C)
        self.calls = 0
        self.teacher = [nn.BatchNorm1d(C).double()]
        self.register_buffer("kept", torch.zeros(()))

    def trick(self, h):
        self.calls += 1
        self.seen = h
        self.teacher[0](h.detach())
        self.kept = self.kept + 1
        drawn = random.random() + np.random.rand() + torch.rand(())  # noqa: NPY002
        return F.dropout(self.norm(h), 0.2, self.training) * drawn


def state_of(model, optimizer):
    return copy.deepcopy(
        (
            model.state_dict(),
            [p.grad for p in model.parameters()],
            optimizer.state_dict(),
            [m.training for m in model.modules()],
            model.calls,
            model.teacher[0].state_dict(),
            hasattr(model, "seen"),
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
        )
    )


def test_the_check_changes_nothing():
    model = make_model(Counts)
    optimizer = adam(model, lr=0.1)
    runner = sg.StaticGraphRunner(model, PLAN, mode="eager", loss=squared, optimizer=optimizer)
    model.train()
    model.norm.eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = state_of(model, optimizer)
    kept = model.kept
    runner.warmup(BATCH)
    assert not runner.preparation.padding.wanted("step")
    assert same(state_of(model, optimizer), before)
    assert model.kept is kept


@pytest.mark.parametrize("known", [True, False])
def test_it_runs_once_and_not_over_padding_alone(known):
    model = make_model(Counts)
    runner = runner_of(model)
    blank = sg.StaticBatch.of(STORE, [], CAPACITY)
    if not known:
        blank.real = None
    for mode in (False, True):  # an extra run finds which results are rows
        model.train(mode)
        runner.steps.computation.known(blank)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    runner.step(blank)
    assert len(calls) == 1
    runner.step(BATCH)
    checked = len(calls)
    assert checked > 3
    runner.step(BATCH)
    runner.eval_step(BATCH)
    assert len(calls) == checked + 2


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_what_the_warm_up_checked_is_not_checked_again(mode):
    """An evaluation counts as such whether the warm-up or a batch starts it, and whatever mode the
    model was left in; calling the model in training mode is a separate case."""
    model = getattr(make_model(Counts), mode)()
    runner = sg.StaticGraphRunner(model, PLAN, mode="eager").warmup(STORE)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(model.training))
    runner.eval_step(BATCH)
    runner.predict(STORE)
    assert len(calls) == 2
    model.train()
    runner(BATCH)
    assert len(calls) > 3
    assert calls[2]
    checked = len(calls)
    runner(BATCH)
    runner.eval_step(BATCH)
    assert len(calls) == checked + 2


def test_the_first_epoch_after_a_warm_up_is_not_checked_and_the_second_over_a_few_graphs():
    model, rows = make_model(Probe), []
    model.conv.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    store = sg.GraphStore.from_pyg(MANY)
    runner = runner_of(model, MANY_PLAN).warmup(store)
    rows.clear()
    batches = [runner.step(batch) for batch in sg.StaticLoader(store, MANY_PLAN)]
    full = MANY_PLAN[0][0]
    assert rows == [full] * len(batches)
    rows.clear()
    batches = [runner.step(batch) for batch in sg.StaticLoader(store, MANY_PLAN)]
    assert rows.count(full) == len(batches)
    assert 1 < sum(rows) - full * len(batches) < full  # plain PyG, and over padding


@pytest.mark.parametrize("data", ["sorted", "keep_order", "typed"])
def test_a_portion_holds_the_first_graphs_of_a_batch(data):
    molecules = sg.datasets.open("esol")
    stored = [molecules[n] for n in range(32)]
    if data == "typed":
        stored = [from_molecule(graph) for graph in stored]
    store = sg.GraphStore.from_pyg(stored, keep_order=data == "keep_order")
    plan = sg.plan_buckets(store, 32)
    batch = sg.StaticBatch.of(store, range(32), plan.capacities[-1])
    portion = portion_of(batch)
    pieces = portion.to_data_list()
    assert len(pieces) == 8
    for piece, graph in zip(pieces, batch.to_data_list(), strict=False):
        for name, value in graph.to_dict().items():
            torch.testing.assert_close(piece.to_dict()[name], value, rtol=0, atol=0)
    real = portion.real_counts
    for level in portion.levels:  # padding of every kind, and not as much as in the bucket
        planned = batch.capacity.graphs if level == "graph" else batch.capacity.rows(level) // 2
        assert real.of(level) < portion.capacity.rows(level) <= planned


def test_a_check_waits_for_no_collection_of_garbage(esol, monkeypatch):
    """One of everything that torch holds took as long as twenty steps."""
    plan = sg.plan_buckets(esol, 128)
    model = sg.models.build("gine", esol, hidden=16, layers=4)
    runner = sg.StaticGraphRunner(model, plan, "eager", loss=squared, optimizer=adam(model))
    runner.warmup(esol, progress=False)
    loader = runner.loader(esol, shuffle=True)
    checks, collections = [], []
    check = runner.preparation.padding.check_batch

    def noted(*args):
        before = sum(each["collections"] for each in gc.get_stats())
        check(*args)
        checks.append(args)
        collections.append(sum(each["collections"] for each in gc.get_stats()) - before)

    monkeypatch.setattr(runner.preparation.padding, "check_batch", noted)
    for _ in range(2):
        for batch in loader:
            runner.step(batch)
    assert (len(checks), sum(collections)) == (1, 0)


def test_an_error_comes_again_and_leaves_the_model_usable():
    model = make_model(Mean)
    runner = runner_of(model).warmup()  # in eager without an example it waits for the first batch
    for _ in range(2):
        with pytest.raises(sg.errors.PaddingLeaks):
            runner.step(BATCH)
    runner_of(model, check_padding=False).step(BATCH)


def test_a_model_without_a_loss_is_checked_at_its_first_forward():
    for call in ("__call__", "eval_step", "predict"):
        runner = sg.StaticGraphRunner(make_model(Mean).eval(), PLAN, mode="eager")
        with pytest.raises(sg.errors.PaddingLeaks):
            getattr(runner, call)(STORE if call == "predict" else BATCH)


def test_an_evaluation_first_does_not_spare_the_step():
    """In evaluation mode BatchNorm uses its running statistics: only the step shows the padding."""
    model = make_model(with_norm(ByName))
    runner = runner_of(model)
    runner.eval_step(BATCH)
    with pytest.raises(sg.errors.PaddingLeaks):
        runner.step(BATCH)


def test_a_loss_that_mixes_rows_is_found():
    def centred(out, batch):
        return (out - batch.y - (out - batch.y).mean(0)).square()  # here

    model = make_model(Probe)
    runner = sgd_runner(model, PLAN, loss=centred)
    said = r"the loss changes by .*no layer does it.*# here"
    with pytest.raises(sg.errors.PaddingLeaks, match=said) as raised:
        runner.step(BATCH)
    assert raised.value.module is None


def test_missing_labels_leave_the_outputs_to_compare():
    graphs = STORE_WITH_MISSING
    batch = sg.StaticBatch.of(graphs, range(len(graphs)), CAPACITY)
    runner_of(make_model(Probe)).step(batch)
    with pytest.raises(sg.errors.PaddingLeaks, match="number of padding rows"):
        runner_of(make_model(CountedNodes)).step(batch)


def with_missing():
    graphs = BATCH.clone().to_data_list()
    graphs[1].y[0, 0] = float("nan")
    return sg.GraphStore.from_pyg(graphs)


STORE_WITH_MISSING = with_missing()


@pytest.mark.parametrize("example", [None, STORE, BATCH], ids=["made up", "store", "batch"])
def test_warmup_checks_before_it_compiles(example, monkeypatch):
    runner = runner_of(make_model(with_norm(ByName)), mode="default")
    if example is None:
        runner.preparation.schema = STORE.schema
    monkeypatch.setattr(runner.preparation, "prepare", lambda *_: pytest.fail("compiled before"))
    with pytest.raises(sg.errors.PaddingLeaks, match=r"'layer' \(StaticByName\)"):
        runner.warmup(example)


def test_a_lazy_layer_is_run_before_the_check():
    runner = sgd_runner(nn.LazyLinear(2), PLAN, "eager", forward=lambda model, b: model(b.x))
    with pytest.raises(ValueError, match="weight has no shape yet: run the lazy module once"):
        runner.predict(STORE)


def test_a_model_that_does_not_run_says_so_itself():
    class Broken(Probe):
        def trick(self, h):
            raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        runner_of(make_model(Broken)).step(BATCH)
