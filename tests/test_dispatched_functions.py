"""PyG's functions that dispatch to static forms: unchanged outside a step, static inside one, and
not called around a replay."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from support.threaded import (
    CAPACITY,
    GRAPHS,
    STORE,
    Elsewhere,
    Net,
    Once,
    batch_of,
    plain,
    runner_of,
    same,
)
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn.aggr import Aggregation

import staticgraph as sg
from staticgraph.nn import functions
from staticgraph.nn.context.dispatch import stock
from staticgraph.steps.compilation.compiled_function import CompiledFunction

LISTED = sorted(functions.static_functions(), key=lambda f: f.__qualname__)


@pytest.mark.parametrize("function", LISTED, ids=lambda f: f.__qualname__)
def test_a_listed_function_is_still_itself(function):
    sg.convert(nn.Identity())
    own = stock(function)
    assert function.__code__ is not own.__code__  # it dispatches
    assert inspect.signature(function) == inspect.signature(own)
    assert inspect.getfullargspec(function) == inspect.getfullargspec(own)
    assert inspect.getsource(function) == inspect.getsource(own)
    assert (function.__defaults__, function.__name__) == (own.__defaults__, own.__name__)
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    functions.install()
    assert stock(function) is own


def test_own_compilation_of_plain_pyg_beside_a_step():
    """A graph that the user compiled for plain PyG is not used in a thread while a batch is present
    there; every other thread uses it."""
    captured = []

    def backend(graph, inputs):
        captured.append(graph)
        return graph.forward

    convolution = pyg.GraphConv(4, 4).double()
    compiled = torch.compile(convolution, backend=backend, dynamic=False)
    data = Batch.from_data_list(GRAPHS[:5])
    expected = convolution(data.x, data.edge_index)
    assert same(compiled(data.x, data.edge_index), expected)
    count = len(captured)
    middle = Once()
    other = Elsewhere(lambda: compiled(data.x, data.edge_index))
    middle.work = lambda: (other.start(), other.result())
    runner_of(Net(middle=middle)).step(batch_of())
    assert same(other.result(), expected)
    assert len(captured) == count


def test_a_compiled_part_of_an_eager_model_is_static_in_a_step():
    """A part that the user compiled sees the batch of the thread that calls it."""
    model, twin = Net(), Net()
    expected = runner_of(twin).eval_step(batch_of()).out
    model.eval()
    some = Batch.from_data_list(GRAPHS[:5])
    model.second = torch.compile(model.second, backend="eager", dynamic=False)
    before = plain(model, GRAPHS[:5])
    assert same(runner_of(model).eval_step(batch_of()).out[:10], expected[:10])
    assert same(model(some.x, some.edge_index, some.batch), before)


def test_a_compiled_step_changes_no_setting_of_the_process(monkeypatch):
    """torch's stance holds for all threads: changing it would fail a user's own compilation."""
    runner = runner_of(
        nn.Linear(4, 1).double(), mode="default", forward=lambda m, b: m(b.x)[: b.num_graphs, 0]
    )
    runner.step(batch_of())
    seen, call = [], CompiledFunction._again

    def watched(self, tensors):
        own, inner = self._call, lambda *given: (seen.append(stance()), own(*given))[1]
        self._call = inner
        try:
            return call(self, tensors)
        finally:
            self._call = own

    def stance() -> str:
        return torch._dynamo.eval_frame._stance.stance

    monkeypatch.setattr(CompiledFunction, "_again", watched)
    runner.step(batch_of())
    assert seen == ["default"]


def test_nothing_of_pyg_happens_around_a_replay():
    model = Net()
    runner = runner_of(model, mode="cuda-graph", on_miss="error")
    runner.warmup(STORE)
    batches = [batch_of(), batch_of(10)]
    called: set[str] = set()

    def profile(frame, event, _):
        if event == "call":
            called.add(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        for batch in batches:
            runner.step(batch)
            runner.eval_step(batch)
    finally:
        sys.setprofile(None)
    assert any(file.endswith("recorded_steps.py") for file in called)
    own = {file for file in called if "torch_geometric" in file or "/staticgraph/nn/" in file}
    assert own == set()


def test_aggregations_ask_for_the_present_batch_in_subclasses():
    class Own(Aggregation):
        def forward(self, x, index=None, ptr=None, dim_size=None, dim=-2):
            return self.reduce(x, index, ptr, dim_size, dim, reduce="sum")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = Own()

        def forward(self, x, batch):
            return self.own(x, batch)

    out = sg.StaticGraphRunner(Model(), [CAPACITY], "eager")(batch_of())
    data = Batch.from_data_list(GRAPHS[:10])
    assert same(out[:10], Own()(data.x, data.batch))
    assert F.mse_loss(out[:10], out[:10]) == 0
