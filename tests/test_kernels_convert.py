"""convert(model, kernels=True): the results of plain PyG, or a reason for running stock code."""

from __future__ import annotations

import copy

import pytest
import torch
from support.sampled import in_turn
from torch_geometric.data import Batch
from torch_geometric.nn import GINConv, GINEConv, SAGEConv

import staticgraph as sg
from staticgraph import models
from staticgraph.dryrun.operations import OperationCounter, count_step
from staticgraph.nn.convert import context_of
from staticgraph.nn.fused import fused_layers
from staticgraph.nn.fused.linear import SMALL
from staticgraph.steps.compilation.captured_step import CapturedStep
from staticgraph.steps.computation.computation import Computation

CAPACITY = (210, 430, 9)
IDS = [3, 1, 4, 1059, 200, 7]


def stock_call(model, store, ids):
    batch = Batch.from_data_list([store[i] for i in ids])
    return model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, len(ids))


def reasons(model) -> set[str]:
    return {layer.stock_reason for layer in fused_layers(model) if layer.stock_reason is not None}


@pytest.mark.slow  # on a fresh clone, for what its cases compile
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "pool"), in_turn(models.NAMES, ["mean", "add"]))
def test_outputs_gradients_and_statistics_are_those_of_plain_pyg(name, pool, esol):
    """In float64, on padded batches."""
    torch.manual_seed(0)
    stock = models.build(name, esol, hidden=16, layers=2, pool=pool).double()
    model = sg.convert(copy.deepcopy(stock), kernels=True)
    runner = sg.StaticGraphRunner(model, [CAPACITY])
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY, pointers=True)
    expected = stock_call(stock, esol, IDS)
    expected.square().mean().backward()
    out = runner(batch)[batch.graph_mask]
    out.square().mean().backward()
    assert torch.allclose(out, expected, rtol=0, atol=1e-10)
    largest = max(p.grad.abs().max() for p in stock.parameters())
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        assert (ours.grad - theirs.grad).abs().max() <= 1e-10 * largest
    assert model.state_dict().keys() == stock.state_dict().keys()
    statistics = dict(model.named_buffers())
    for key, theirs in stock.named_buffers():
        assert torch.allclose(statistics[key].double(), theirs.double(), rtol=0, atol=1e-12)
    assert torch.allclose(stock_call(model.eval(), esol, IDS), stock_call(stock.eval(), esol, IDS))


def test_it_trains_to_the_same_losses(hiv):
    """Twenty float32 steps on real molecules, against the same runner without kernels."""
    plan = sg.plan_buckets(hiv, batch_size=64)
    losses = []
    for kernels in (False, True):
        torch.manual_seed(0)
        model = sg.convert(models.build("gine", hiv, hidden=64, layers=2), kernels=kernels)
        runner = sg.StaticGraphRunner(
            model,
            plan,
            "eager",
            loss=lambda out, batch: (out - batch.y).square(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        )
        loader = sg.StaticLoader(
            hiv, plan, indices=range(1280), shuffle=True, seed=1, pointers=kernels
        )
        losses.append(torch.stack([runner.step(batch) for batch in loader]))
    # SGD, not Adam: Adam turns a gradient of pure rounding error into a full-size step.
    assert torch.allclose(*losses, rtol=1e-4, atol=1e-6)
    assert reasons(model) <= {"too small to gain"}
    assert losses[1][-5:].mean() < losses[1][:5].mean()


def test_large_layers_use_onednn(hiv):
    model = sg.convert(models.build("gine", hiv, hidden=64, layers=2), kernels=True)
    batch = sg.StaticBatch.of(hiv, range(64), (2600, 5600, 65, 222), pointers=True)
    with OperationCounter() as counter:
        sg.StaticGraphRunner(model, [batch.capacity])(batch)
    assert batch.num_nodes * 64 * 64 > SMALL
    assert counter.operations.counts["forward"]["staticgraph::linear"] > 0


@pytest.mark.parametrize(("name", "most"), [("gine", 0.5), ("gps", 0.65)])
def test_fewer_operations_a_step(name, most, esol):
    totals = []
    for kernels in (None, True):
        model = models.build(name, esol, hidden=16, layers=3)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        if kernels is None:
            batch = Batch.from_data_list([esol[i] for i in IDS])

            def forward(model=model, batch=batch):
                out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, len(IDS))
                return out.square().mean()
        else:
            subject = sg.Subject(model, lambda out, batch: out.square())
            padded = sg.StaticBatch.of(esol, IDS, CAPACITY)
            forward = CapturedStep(Computation(subject), "step", padded)

        forward().backward()
        optimizer.step()
        totals.append(count_step(forward, optimizer))
    assert totals[1].total() <= most * totals[0].total()
    assert totals[1].host_reads == 0


def test_a_compiled_step_is_one_graph(esol):
    torch.manual_seed(0)
    model = sg.convert(models.build("gine", esol, hidden=16, layers=2), kernels=True)
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY, pointers=True)
    names, context = tuple(batch.tensors()), context_of(model)

    def run(*tensors):
        inner = sg.StaticBatch(batch.layout, dict(zip(names, tensors, strict=True)))
        context.enter(inner)
        out = model(inner.x, inner.edge_index, inner.edge_attr, inner.batch, inner.num_graphs)
        context.leave()
        return out

    expected = run(*batch.tensors().values())
    expected.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    out = torch.compile(run, backend="aot_eager", fullgraph=True)(*batch.tensors().values())
    out.sum().backward()
    assert torch.allclose(out, expected, atol=1e-5)
    largest = max(g.abs().max() for g in gradients)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert (parameter.grad - gradient).abs().max() <= 1e-4 * largest


def test_a_batch_without_pointers_is_refused(esol):
    model = sg.convert(models.build("gine", esol, hidden=8, layers=1), kernels=True)
    runner = sg.StaticGraphRunner(model, [CAPACITY])
    with pytest.raises(ValueError, match=r"StaticLoader\(..., pointers=True\)"):
        runner(sg.StaticBatch.of(esol, IDS, CAPACITY))


def test_predicting_carries_pointers_by_itself(esol):
    model = sg.convert(models.build("gine", esol, hidden=8, layers=1), kernels=True)
    graphs = [esol[i] for i in IDS]
    out = sg.StaticGraphRunner(model, [CAPACITY]).predict(graphs)
    assert torch.allclose(out, stock_call(model.eval(), esol, IDS), atol=1e-5)


class OneConv(torch.nn.Module):
    """A stock layer, called as in user code."""

    def __init__(self, conv, change=lambda edge_index: edge_index):
        super().__init__()
        self.conv = conv
        self.change = change

    def forward(self, x, edge_index):
        return self.conv(x.double(), self.change(edge_index))


def gin(**options):
    return GINConv(torch.nn.Linear(9, 4), **options).double()


def hooked(conv):
    conv.register_message_forward_hook(lambda *_: None)
    return conv


@pytest.mark.parametrize(
    ("conv", "change", "reason"),
    [
        (gin(), lambda e: e, None),
        (gin(train_eps=True, eps=0.3), lambda e: e, None),
        (gin(aggr="mean"), lambda e: e, None),
        (SAGEConv(9, 4).double(), lambda e: e, None),
        (SAGEConv(9, 4, project=True, normalize=True).double(), lambda e: e, None),
        (gin(aggr="max"), lambda e: e, None),
        (SAGEConv(9, 4, aggr="max").double(), lambda e: e, None),
        (gin(aggr="min"), lambda e: e, "aggr='min'"),
        (gin(flow="target_to_source"), lambda e: e, "target_to_source"),
        (gin(), lambda e: e.clone(), "not the batch's own"),
        (hooked(gin()), lambda e: e, "hooks"),
    ],
)
def test_each_layer_equals_the_stock_one_or_says_why_it_is_it(conv, change, reason, esol):
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY, pointers=True)
    stock = OneConv(copy.deepcopy(conv), change)
    expected = stock(batch.x, batch.edge_index)[batch.node_mask]
    expected.sum().backward()
    model = sg.convert(OneConv(copy.deepcopy(conv), change), kernels=True)
    out = sg.StaticGraphRunner(model, [CAPACITY], forward=lambda m, b: m(b.x, b.edge_index))(batch)
    out = out[batch.node_mask]
    out.sum().backward()
    assert torch.allclose(out, expected, rtol=0, atol=1e-11)
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10)
    found = model.conv.stock_reason
    assert found is None if reason is None else reason in found


def test_gine_with_a_projection_of_its_edges(esol):
    torch.manual_seed(0)
    stock = GINEConv(torch.nn.Linear(9, 4), edge_dim=3, aggr="mean").double()
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY, pointers=True)
    expected = stock(batch.x.double(), batch.edge_index, batch.edge_attr.double())
    model = torch.nn.Sequential(copy.deepcopy(stock))
    sg.convert(model, kernels=True)
    runner = sg.StaticGraphRunner(
        model,
        [CAPACITY],
        forward=lambda m, b: m[0](b.x.double(), b.edge_index, b.edge_attr.double()),
    )
    out, real = runner(batch), batch.node_mask
    assert torch.allclose(out[real], expected[real], rtol=0, atol=1e-11)
    assert reasons(model) <= {
        "on a CPU only float32 has a fused form",
        "no batch is bound: it ran outside the runner",
    }


def test_encoders_of_ogb_are_known_by_name(esol):
    """Tested without the package, by a class of that name with tables in that attribute."""

    class AtomEncoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.atom_embedding_list = torch.nn.ModuleList(
                torch.nn.Embedding(size, 4) for size in esol.cardinality("x")
            )

        def forward(self, x):
            return sum(t(x[:, i]) for i, t in enumerate(self.atom_embedding_list))

    AtomEncoder.__module__ = "ogb.graphproppred.mol_encoder"
    AtomEncoder.__qualname__ = "AtomEncoder"
    model = torch.nn.Sequential(AtomEncoder()).double()
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY, pointers=True)
    expected = model(batch.x)
    sg.convert(model, kernels=True)
    runner = sg.StaticGraphRunner(
        sg.Subject(model, forward=lambda m, b: m(b.x), check_padding=False), [CAPACITY]
    )
    with OperationCounter() as counter:
        out, real = runner(batch), batch.node_mask
    assert torch.allclose(out[real], expected[real], rtol=0, atol=1e-12)
    assert counter.operations.counts["forward"]["aten::embedding"] == 0


def test_the_model_can_be_copied_and_converted_twice(esol):
    torch.manual_seed(0)
    model = sg.convert(models.build("gine", esol, hidden=8, layers=1), kernels=True)
    assert sg.convert(model, kernels=True) is model
    other = copy.deepcopy(model)
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY, pointers=True)
    outs = [sg.StaticGraphRunner(m, [CAPACITY])(batch) for m in (model, other)]
    assert torch.equal(*outs)


@pytest.mark.slow
def test_inductor_compiles_it_once_and_trains_to_the_same_losses(esol):
    losses = []
    for mode in ("eager", "default"):
        torch.manual_seed(0)
        model = sg.convert(models.build("gine", esol, hidden=8, layers=1), kernels=True)
        runner = sg.StaticGraphRunner(
            model,
            [CAPACITY],
            mode,
            loss=lambda out, batch: (out - batch.y).square(),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        ).warmup(example=esol, phases=["step"], progress=False)
        batch = sg.StaticBatch.of(esol, IDS, CAPACITY, pointers=True)
        losses.append([runner.step(batch).item() for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert runner.report().buckets[0].compiles == 1
