"""Every layer of the table: padded with garbage it equals plain PyG, in one captured graph."""

from __future__ import annotations

import copy

import pytest
import torch
from support.layer_cases import CASES
from support.layer_model import call, model_of
from support.parity import (
    BATCH,
    STORE,
    differences,
    loss,
    plain_step,
    poisoned,
    static_step,
    static_steps,
    unknown_counts,
)
from torch import nn
from torch_geometric.data import Batch

import staticgraph as sg
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.tracing.trace import tracing_options

torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_padded_with_garbage_equals_plain_pyg(case):
    """Outputs, loss, gradients and buffers, with counts known (eager) and unknown (compiled)."""
    model = model_of(case)
    expected = plain_step(model, call, BATCH)
    for scale in (1.0, 1000.0):
        batch = poisoned(BATCH, scale)
        found, _ = static_step(model, call, batch)
        assert differences(expected, found, case.tolerance) == []
        if not case.eager_only:
            found, _ = static_step(model, call, unknown_counts(batch))
            assert differences(expected, found, case.tolerance) == []


PARTS = 16
POISONED = unknown_counts(poisoned(BATCH, 1000.0))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_layer_is_one_graph_of_fixed_shapes(part):
    """Captured as by torch.compile, the layers of a part together and, if that fails, each alone,
    so that the failing one is named; the captured graph gives PyG's results too."""
    wrong = {}
    refused = [case for case in CASES[part::PARTS] if case.eager_only]
    for case in refused:
        _, trace = static_step(model_of(case), call, POISONED, trace=True)
        assert trace.error is not None
        assert "pass max_num_elements=" in trace.error
    cases = [case for case in CASES[part::PARTS] if not case.eager_only]
    models = [model_of(case) for case in cases]
    found, trace = static_steps(models, call, POISONED, trace=True)
    if not trace.static:
        wrong["together"] = trace
        for case, model in zip(cases, models, strict=True):
            _, alone = static_step(model, call, POISONED, trace=True)
            if not alone.static:
                wrong[case.name] = alone
    for case, model, one in zip(cases, models, found, strict=bool(found)):
        if differ := differences(plain_step(model, call, BATCH), one, case.tolerance):
            wrong[case.name] = differ
    assert wrong == {}


def test_the_table_is_as_long_as_promised():
    """At least 55 of PyG's convolutions, all its norms, basic aggregations and global pools."""
    import torch_geometric.nn as pyg
    from torch_geometric.nn import norm

    def named(kind: str) -> set[str]:
        return {case.name.split()[0].strip(",") for case in CASES if case.kind == kind}

    assert len(named("convolutions") & set(pyg.conv.__all__)) >= 55
    assert set(norm.__all__) <= named("norms")
    basic = ("Sum", "Mean", "Max", "Min", "Mul", "Var", "Std", "Softmax", "PowerMean", "Median")
    assert {f"{name}Aggregation" for name in basic} <= named("aggregations")
    assert {"global_add_pool", "global_mean_pool", "global_max_pool"} <= named("pools")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_outside_the_runner_nothing_changes(case):
    """A converted model on PyG's own batch: the same results and the same state_dict keys."""
    model = model_of(case)
    converted = sg.convert(copy.deepcopy(model))
    assert list(converted.state_dict()) == list(model.state_dict())
    assert sg.convert(converted) is converted
    batch = Batch.from_data_list(BATCH.to_data_list())
    assert torch.equal(converted.eval()(batch), model.eval()(batch))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_batch_of_padding_alone_changes_nothing(case):
    """Warm-up and ranks without graphs run such a batch: no gradient, no NaN, and unchanged running
    statistics."""
    if case.eager_only:
        pytest.skip(case.eager_only)
    model = model_of(case)
    before = {name: value.clone() for name, value in model.named_buffers()}
    nothing = sg.StaticBatch.of(STORE, [], BATCH.capacity)
    for batch in (nothing, unknown_counts(poisoned_with(nothing))):
        found, _ = static_step(model, call, batch)
        assert found.values["loss"] == 0
        for name, value in found.values.items():
            kind, _, key = name.partition(" ")
            if kind == "grad":
                assert not value.any(), name
            elif kind == "buffer":
                assert torch.equal(value, before[key]), name


def poisoned_with(batch):
    """The batch with garbage in every field, as if it held graphs."""
    filled = poisoned(BATCH, 1000.0)
    return batch.replace(**{field.name: filled[field.name] for field in batch.layout.schema})


TRAINED = ("GATConv", "GPSConv", "GPSConv performer", "InstanceNorm", "Set2Set", "TopKPooling")


class Together(nn.Module):
    """Several models as one: half of the cost of capturing is shared by all."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, batch):
        total = self.models[0](batch)
        for model in self.models[1:]:
            total = total + model(batch)
        return total


def captured_while_it_trains(model: nn.Module) -> int:
    """The number of captured graphs for batches of varying size, also empty, while weights
    change."""
    torch._dynamo.reset()
    computation = Computation(sg.Subject(model, loss, forward=call))
    graphs = []

    def look(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(
        computation.of_tensors("step", BATCH), fullgraph=True, dynamic=False, backend=look
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for ids in ([0, 1, 2, 3, 4], [2], [4, 1], [0, 0, 3], [], [1, 1, 2]):
        batch = sg.StaticBatch.of(STORE, ids, BATCH.capacity)
        optimizer.zero_grad()
        with computation.active(), tracing_options():
            found = step(*batch.tensors().values())
        found.backward()
        optimizer.step()
    return len(graphs)


def test_nothing_is_captured_again_while_it_trains():
    """The layers whose work depends most on the batch, together; if that fails, each alone."""
    models = {case.name: model_of(case) for case in CASES if case.name in TRAINED}
    assert models.keys() == set(TRAINED)
    if (count := captured_while_it_trains(Together([*models.values()]))) != 1:
        alone = {name: captured_while_it_trains(model) for name, model in models.items()}
        pytest.fail(f"{count} graphs of all together; of each {alone}")
