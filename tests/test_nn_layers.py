"""Every layer of the support table in all ways: each record runs over samples of every kind, in
both precisions, with second derivatives, captured and recorded, and is plain PyG's.

How far a result may be from plain PyG's follows from how far plain PyG is from itself when its
parameters change by rounding alone. What cannot hold is an expected failure with its reason.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from support.alike import sgd, update
from support.alike import squared as loss
from support.arena import ArenaRecorder
from support.layer_cases import CASES
from support.layer_model import model_of
from support.parity import (
    BATCH,
    CAPACITY,
    EDGE_WIDTH,
    NODES,
    STORE,
    allowed_difference,
    call,
    differences,
    graphs,
    plain_step,
    poisoned,
    static_step,
    static_steps,
    unknown_counts,
)
from torch import nn
from torch_geometric.data import Batch, Data

import staticgraph as sg
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.tracing.trace import tracing_options


def batch_of(made: Iterable[Data]) -> sg.StaticBatch:
    """Returns a batch of all given graphs in the usual capacity."""
    store = sg.GraphStore.from_pyg(list(made))
    return sg.StaticBatch.of(store, range(len(store)), CAPACITY)


def hub(graph: Data) -> Data:
    """Returns the graph with edges from every other node to the first, and no others."""
    count = graph.num_nodes - 1
    random = np.random.default_rng(count)
    sources = torch.arange(1, count + 1)
    graph.edge_index = torch.stack([sources, torch.zeros_like(sources)])
    graph.edge_attr = torch.from_numpy(random.standard_normal((count, EDGE_WIDTH)))
    graph.edge_weight = torch.from_numpy(random.random(count) + 0.1)
    graph.edge_type = torch.from_numpy(random.integers(0, 3, count))
    return graph


def tied(graph: Data) -> Data:
    """Returns the graph with equal features everywhere."""
    for key in ("x", "edge_attr", "edge_weight", "pos", "normal"):
        graph[key] = torch.ones_like(graph[key])
    return graph


def halved(graph: Data) -> Data:
    """Returns the graph in float16."""
    for key, value in graph:
        if value.is_floating_point():
            graph[key] = value.half()
    return graph


NUM_NODES, NUM_EDGES = (int(total) for total in STORE.sizes.sum(0))
EVERY = range(len(NODES))
SAMPLES = {
    "one node": sg.StaticBatch.of(STORE, [1], (5, 9, 3)),
    "exact fit": sg.StaticBatch.of(STORE, EVERY, (NUM_NODES + 1, NUM_EDGES, len(NODES) + 1)),
    "much room": sg.StaticBatch.of(STORE, EVERY, (120, 300, 40)),
    "hubs": batch_of(map(hub, graphs(2))),
    "ties": batch_of(map(tied, graphs(3))),
    "half precision": batch_of(map(halved, graphs(4))),
}


TRACED = [case for case in CASES if not case.eager_only]
NO_ROWS = "PyG's norm counts a batch in which no row is left as one more batch"
SINGLE_INSIDE = "PyG computes it in single precision, which a norm over equal rows magnifies"
OVERFLOWS = "the exponential of garbage overflows in float16, and zero times infinity is NaN"
# By sample and layer.
EXPECTED = {
    ("hubs", "SAGPooling"): NO_ROWS,
    ("ties", "SGFormer"): SINGLE_INSIDE,
    ("half precision", "GMMConv"): OVERFLOWS,
    ("half precision", "PerformerAttention, to_dense_batch"): OVERFLOWS,
}


def by_name(case: Any) -> str:
    return case.name


def wrong_in(case: Any, batch: sg.StaticBatch, twice: bool = False) -> list[str]:
    """What differs from plain PyG with garbage in the padding, with counts known (eager) and
    unknown (compiled); nothing where plain PyG itself refuses the batch."""
    model = model_of(case).to(batch.x.dtype if case.dtype == torch.float64 else case.dtype)
    try:
        expected = plain_step(model, call, batch, twice)
    except (ValueError, RuntimeError):
        return []
    tolerance = allowed_difference(model, call, batch, expected, twice, case.tolerance)
    wrong = []
    for known in (True, False)[: 1 if case.eager_only else 2]:
        filled = poisoned(batch, 3.0 if batch.x.dtype == torch.float16 else 1000.0)
        result, _ = static_step(
            model, call, filled if known else unknown_counts(filled), twice=twice
        )
        wrong += differences(expected, result, tolerance)
    return wrong


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_padded_with_garbage_equals_plain_pyg(case):
    """Outputs, loss, gradients and buffers."""
    assert wrong_in(case, BATCH) == []


@pytest.mark.sampled(20)
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_a_layer_is_plain_pygs_over_samples_of_every_kind(case, request):
    reasons = [EXPECTED[sample, case.name] for sample in SAMPLES if (sample, case.name) in EXPECTED]
    if reasons:
        request.applymarker(pytest.mark.xfail(reason="; ".join(reasons), strict=True))
    assert {
        name: wrong for name, batch in SAMPLES.items() if (wrong := wrong_in(case, batch))
    } == {}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_second_derivatives_are_plain_pygs(case):
    """The gradient of a gradient penalty, in eager, wherever plain PyG has one."""
    assert wrong_in(case, BATCH, twice=True) == []


PARTS = 16
POISONED = unknown_counts(poisoned(BATCH, 1000.0))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_layer_is_one_graph_of_fixed_shapes(part):
    """Captured as by torch.compile, the layers of a part together; the captured graph gives PyG's
    results too."""
    cases = TRACED[part::PARTS]
    models = [model_of(case) for case in cases]
    results, trace = static_steps(models, call, POISONED, trace=True)
    assert trace.static, f"one of {[case.name for case in cases]}: {trace}"
    for case, model, result in zip(cases, models, results, strict=True):
        assert differences(plain_step(model, call, BATCH), result, case.tolerance) == [], case.name


@pytest.mark.parametrize("case", [case for case in CASES if case.eager_only], ids=by_name)
def test_a_layer_that_is_not_captured_says_what_to_pass(case):
    _, trace = static_step(model_of(case), call, POISONED, trace=True)
    assert "pass max_num_elements=" in trace.error


@pytest.mark.slow
@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", TRACED, ids=by_name)
def test_every_layer_replays_like_eager(case):
    """Loss, gradients and outputs of a replay on data that were not recorded match, since the calls
    are the same bit for bit; changing an input field changes the output. On the tape a host read is
    an error, and an address that is not written gives wrong numbers."""
    model = model_of(case)
    optimizer = sgd(model, 0.0)
    subject = Subject(model, loss, optimizer, forward=call, check_padding=False)
    recording = sg.Recording(scope="forward_backward", recorder=ArenaRecorder)
    runner = sg.StaticGraphRunner(subject, [CAPACITY], "cuda-graph", recording=recording)
    if case.name in ("SGFormer", "Polynormer"):  # they sort batch, which is compared on a CPU alone
        with pytest.raises(sg.NotStatic, match="a value is read on the host"):
            runner.warmup(STORE)
        return
    try:
        verified = runner.warmup(STORE).verify(BATCH)
        if case.name == "PPFConv":  # a norm over rows of unknown number
            assert any("_staticgraph_single" in vars(module) for module in model.modules())
    finally:
        runner.close()
    assert max(verified.errors.values()) <= 1e-12, str(verified)
    assert verified.moved, str(verified)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_outside_the_runner_nothing_changes(case):
    """A converted model on PyG's own batch: the same results and the same state_dict keys."""
    model = model_of(case)
    converted = sg.convert(copy.deepcopy(model))
    assert list(converted.state_dict()) == list(model.state_dict())
    assert sg.convert(converted) is converted
    batch = Batch.from_data_list(BATCH.to_data_list())
    assert torch.equal(converted.eval()(batch), model.eval()(batch))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", TRACED, ids=by_name)
def test_a_batch_of_padding_alone_changes_nothing(case):
    """Warm-up and ranks without graphs run such a batch: no gradient, no NaN, and unchanged running
    statistics."""
    model = model_of(case)
    before = {f"buffer {name}": value.clone() for name, value in model.named_buffers()}
    nothing = sg.StaticBatch.of(STORE, [], BATCH.capacity)
    garbage = poisoned(BATCH, 1000.0)
    filled = nothing.replace(**{field.name: garbage[field.name] for field in nothing.layout.schema})
    for batch in (nothing, unknown_counts(filled)):
        result, _ = static_step(model, call, batch)
        assert result.values["loss"] == 0
        for name, value in result.values.items():
            if name.startswith("grad"):
                assert not value.any(), name
            elif name in before:
                assert torch.equal(value, before[name]), name


TRAINED = ("GATConv", "GPSConv", "GPSConv performer", "InstanceNorm", "Set2Set", "TopKPooling")


class Together(nn.Module):
    """Several models as one: half of the cost of capturing is shared by all."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, batch):
        return sum(model(batch) for model in self.models)


def test_nothing_is_captured_again_while_it_trains():
    """The layers whose work depends most on the batch, over batches of varying size, also empty,
    while weights change."""
    torch._dynamo.reset()
    model = Together([model_of(case) for case in CASES if case.name in TRAINED])
    assert len(model.models) == len(TRAINED)
    computation = Computation(Subject(model, loss, forward=call))
    graphs = []

    def look(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(
        computation.of_tensors("step", BATCH), fullgraph=True, dynamic=False, backend=look
    )
    optimizer = sgd(model, 0.01)
    for ids in ([0, 1, 2, 3, 4], [2], [4, 1], [0, 0, 3], [], [1, 1, 2]):
        batch = sg.StaticBatch.of(STORE, ids, BATCH.capacity)
        with computation.active(), tracing_options():
            mean = step(*batch.tensors().values())
        update(optimizer, mean)
    assert len(graphs) == 1


def test_a_layer_for_each_degree_runs_over_its_own_nodes_in_eager():
    rows, model = [], model_of(next(case for case in CASES if case.name == "MFConv"))
    layers = [layer for name, layer in model.named_modules() if "lins_l." in name]
    for layer in layers:
        layer.register_forward_hook(lambda layer, args, out: rows.append(len(out)))
    sg.StaticGraphRunner(model, [CAPACITY], "eager", forward=call).predict(list(graphs()))
    assert len(layers) > 1
    assert sum(rows[-len(layers) :]) == CAPACITY[0]
