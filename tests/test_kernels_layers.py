"""GCN, GAT, GATv2, GraphConv, max and the pools with kernels: plain PyG's results, or a reason.

The oracle is PyG itself on the unpadded batch (:mod:`support.parity`): graphs with self-loops and
isolated nodes, everything in float64, garbage in the padding.
"""

from __future__ import annotations

import copy

import pytest
import torch
from support.fused_models import BATCH, LAYERS, Model, call, gat, gcn
from support.parity import (
    CAPACITY,
    EDGE_WIDTH,
    NODES,
    WIDTH,
    plain_step,
    poisoned,
    static_step,
    unknown_counts,
)
from torch import nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GraphConv,
    SAGEConv,
    TransformerConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.nn.aggr import (
    MaxAggregation,
    MeanAggregation,
    SoftmaxAggregation,
    SumAggregation,
)

import staticgraph as sg
from staticgraph.dryrun.operations import OperationCounter
from staticgraph.kernels.neighbour_attention import neighbour_attention_reference
from staticgraph.kernels.pair_score import pair_score_reference
from staticgraph.nn.fused import fused_layers

# For sums of at most a hundred terms of magnitude one, in a different order.
TOLERANCE = 1e-10


def compare(model: Model) -> nn.Module:
    """Asserts that a step with kernels equals plain PyG's; returns the converted model."""
    expected = plain_step(model, call, BATCH)
    ours = sg.convert(copy.deepcopy(model), kernels="all")
    for batch in (BATCH, unknown_counts(poisoned(BATCH, 1e3))):
        found, _ = static_step(ours, call, batch)
        assert found is not None
        assert found.values.keys() == expected.values.keys()
        scale = expected.largest("grad")
        for name, value in expected.values.items():
            other = found.values[name]
            bound = TOLERANCE * max(1.0, scale if name.startswith("grad") else 0.0)
            assert (other.double() - value.double()).abs().max() <= bound, name
    return ours


def known(model: Model) -> sg.StaticGraphRunner:
    """A runner whose one-time check runs are done, so that only the calls of the test run."""
    runner = sg.StaticGraphRunner(sg.Subject(model, forward=call, check_padding=False), [CAPACITY])
    runner.steps.computation.known(BATCH)
    return runner


def reasons_of(model: Model, runner: sg.StaticGraphRunner | None = None) -> dict[str, str | None]:
    """Why each layer ran its stock code, after a forward of the model itself, not of a copy."""
    (runner or sg.StaticGraphRunner(model, [CAPACITY], forward=call))(BATCH)
    return {layer.name: layer.stock_reason for layer in fused_layers(model)}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_plain_pygs(name):
    torch.manual_seed(0)
    model = compare(LAYERS[name]())
    reasons = reasons_of(model)
    assert reasons["first"] is None
    assert reasons["second"] is None


POOLS = {
    "add": (global_add_pool, ()),
    "mean": (global_mean_pool, ()),
    "max": (global_max_pool, ()),
    "sum module": (SumAggregation(), ("pool",)),
    "mean module": (MeanAggregation(), ("pool",)),
    "max module": (MaxAggregation(), ("pool",)),
    "softmax": (SoftmaxAggregation(), ("pool",)),
    "softmax of a temperature": (SoftmaxAggregation(t=0.3, semi_grad=True), ("pool",)),
    "softmax, learned": (SoftmaxAggregation(learn=True, channels=WIDTH), ("pool",)),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_plain_pygs(name):
    torch.manual_seed(0)
    pool, fused = POOLS[name]
    model = compare(Model(gcn(), pool=pool))
    runner = known(model)
    with OperationCounter() as counter:
        reasons = reasons_of(model, runner)
    assert all(reasons[layer] is None for layer in fused)
    done = counter.operations.counts["forward"]
    assert done["staticgraph::segment_sum"] + done["staticgraph::segment_max"] == 1
    assert not [operator for operator in done if "scatter" in operator or "index_add" in operator]


def other_edges(model):
    return lambda m, b: m(b.x, b.edge_index.clone(), b.edge_attr, b.edge_weight, b.batch)


def hooked(model):
    model.first.register_edge_update_forward_hook(lambda *_: None)
    return call


def as_it_is(model):
    return call


STOCK = {
    "not its edges": (lambda: Model(gcn()), other_edges, "not the batch's own"),
    "mean": (lambda: Model(gcn(aggr="mean")), as_it_is, "aggr='mean'"),
    "largest": (lambda: Model(gcn(normalize=False, aggr="max"), "weight"), as_it_is, "aggr='max'"),
    "graph": (lambda: Model(GraphConv(WIDTH, WIDTH, aggr="max"), "weight"), as_it_is, "weighted"),
    "min": (lambda: Model(SAGEConv(WIDTH, WIDTH, aggr="min")), as_it_is, "aggr='min'"),
    "dropout": (lambda: Model(gat(GATConv, dropout=0.5)), as_it_is, "dropped in training"),
    "hook": (lambda: Model(gat(GATv2Conv)), hooked, "hooks"),
    "transformer, dropout": (
        lambda: Model(gat(TransformerConv, dropout=0.5)),
        as_it_is,
        "dropped in training",
    ),
    "transformer, mean": (
        lambda: Model(gat(TransformerConv, aggr="mean")),
        as_it_is,
        "aggr='mean'",
    ),
    "pair": (
        lambda: Model(GATConv((WIDTH, WIDTH), WIDTH)),
        as_it_is,
        "weights of their own",
    ),
    "fill": (
        lambda: Model(gat(GATv2Conv, edge_dim=EDGE_WIDTH, fill_value="max"), "attr"),
        as_it_is,
        "fill_value='max'",
    ),
}


@pytest.mark.parametrize("kind", [GATConv, GATv2Conv, TransformerConv])
@pytest.mark.parametrize("kernels", [True, "all"])
def test_attention_goes_by_its_kernel_on_a_cpu(kind, kernels):
    model = sg.convert(Model(gat(kind)), kernels=kernels)
    sg.StaticGraphRunner(model, [CAPACITY], "eager")(BATCH)
    reasons = {layer.name: layer.stock_reason for layer in fused_layers(model)}
    assert reasons["first"] is None


@pytest.mark.parametrize("name", STOCK)
def test_where_it_cannot_the_layer_says_why_and_is_still_right(name):
    torch.manual_seed(0)
    make, change, reason = STOCK[name]
    stock = make()
    forward = change(stock)
    ours = sg.convert(copy.deepcopy(stock), kernels="all")
    runner = sg.StaticGraphRunner(ours, [CAPACITY], forward=forward)
    torch.manual_seed(1)
    out = runner(BATCH)[: len(NODES)]
    found = {layer.name: layer.stock_reason for layer in fused_layers(ours)}
    assert reason in found["first"]
    if "dropout" not in name:  # dropout draws differently
        static = sg.StaticGraphRunner(copy.deepcopy(stock), [CAPACITY], forward=forward)
        assert torch.allclose(out, static(BATCH)[: len(NODES)], rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", [GATConv, TransformerConv])
def test_attention_weights_come_from_the_stock_code(kind):
    stock = gat(kind).double()
    model = sg.convert(nn.Sequential(copy.deepcopy(stock)), kernels="all")
    runner = sg.StaticGraphRunner(
        model,
        [CAPACITY],
        forward=lambda m, b: m[0](b.x, b.edge_index, return_attention_weights=True)[0],
    )
    runner(BATCH)
    assert "returned" in model[0].stock_reason


def test_degrees_are_computed_once_for_all_layers():
    model = sg.convert(Model(gcn(), "weight"), kernels="all")
    runner = known(model)
    with OperationCounter() as counter:
        runner(BATCH)
        runner(BATCH)
    done = counter.operations.counts["forward"]
    assert done["staticgraph::gcn_degrees"] == 2
    assert done["staticgraph::gcn_sum"] == 4


class OtherWeights(Model):
    """The second layer has its own edge weights."""

    def forward(self, x, edge_index, edge_attr, edge_weight, batch):
        x = self.first(self.node_encoder(x), edge_index, edge_weight)
        return self.head(self.pool(self.second(x, edge_index, edge_weight.square()), batch))


def test_layers_with_different_weights_do_not_share_degrees():
    torch.manual_seed(0)
    compare(OtherWeights(gcn()))


class LearntWeights(OtherWeights):
    """Edge weights that get a gradient from both layers."""

    def __init__(self, conv):
        super().__init__(conv)
        self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x, edge_index, edge_attr, edge_weight, batch):
        return super().forward(x, edge_index, edge_attr, edge_weight * self.scale, batch)


def test_weights_of_edges_are_learnt():
    torch.manual_seed(0)
    compare(LearntWeights(gcn()))


def test_a_pool_by_another_vector_is_the_stock_one():
    """A vector as long as the batch's own that assigns nodes to other graphs."""
    model = nn.Sequential(SoftmaxAggregation())

    def forward(m, b):
        other = b.batch.clamp(max=2)
        pooled = [pool(b.x, other, b.num_graphs) for pool in (global_max_pool, global_add_pool)]
        return torch.stack([*pooled, m[0](b.x, other, dim_size=b.num_graphs)], 1)

    expected = forward(model, BATCH)
    sg.convert(model, kernels="all")
    # Padding nodes are assigned to graph 2 too, which the padding check would refuse.
    subject = sg.Subject(model, forward=forward, check_padding=False)
    runner = sg.StaticGraphRunner(subject, [CAPACITY])
    found = runner(BATCH)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert "not the batch's own" in model[0].stock_reason


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["gcn weighted", "gat edges", "gatv2", "transformer edges", "sage max", "softmax"]
)
def test_a_compiled_step_is_one_graph(name):
    torch.manual_seed(0)
    model = LAYERS[name]() if name in LAYERS else Model(gcn(), pool=SoftmaxAggregation(learn=True))
    model = sg.convert(model, kernels="all")
    context, names = model.norm._staticgraph, tuple(BATCH.tensors())

    def run(*tensors):
        inner = sg.StaticBatch(BATCH.layout, dict(zip(names, tensors, strict=True)))
        context.enter(inner)
        out = call(model, inner)
        context.leave()
        return out

    results = []
    for compiled in (False, True):
        function = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
        out = function(*BATCH.tensors().values())
        out[: len(NODES)].square().sum().backward()
        results.append([out[: len(NODES)], *(p.grad for p in model.parameters())])
        results[-1] = [None if v is None else v.detach().clone() for v in results[-1]]
        model.zero_grad()
    for a, b in zip(*results, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.allclose(a, b, rtol=0, atol=1e-10 * float(a.abs().max() + 1))


@pytest.mark.parametrize(
    "name", ["gcn weighted", "gat edges", "gatv2", "transformer edges", "sage max"]
)
def test_autocast_gives_the_stock_dtypes(name):
    """And values within a few bfloat16 roundings: two layers of sums of at most ten terms."""
    torch.manual_seed(0)
    stock = LAYERS[name]().float()
    tensors = {k: v.float() for k, v in BATCH.tensors().items() if v.is_floating_point()}
    batch, results = BATCH.replace(**tensors), []
    for kernels in (False, True):
        model = sg.convert(copy.deepcopy(stock), kernels=kernels)
        seen = []
        model.second.register_forward_hook(lambda m, i, out, seen=seen: seen.append(out))
        with torch.autocast("cpu", torch.bfloat16):
            out = sg.StaticGraphRunner(model, [CAPACITY], forward=call)(batch)
        out[: len(NODES)].float().square().sum().backward()
        results.append((seen[0][batch.node_mask], model.node_encoder.weight.grad))
    (out, grad), (ours, our_grad) = results
    assert ours.dtype == out.dtype
    for a, b in ((out, ours), (grad, our_grad)):
        assert (a - b).abs().max() <= 10 * 2**-8 * a.abs().max()


def referenced_scores(left, right, weight, src, dst, *pointers, edge, own, slope):
    return pair_score_reference(left, right, weight, edge, own, src, dst, slope)


def referenced_attention(rows, src, dst, *pointers, heads, edge, own, loops):
    return neighbour_attention_reference(rows, None, edge, own, src, dst, heads, 0.0, loops)


# For GATv2, one of its two operators at a time is replaced by eager torch, which has second
# derivatives: the order in which autograd reaches the two is not specified.
@pytest.mark.parametrize(
    ("layer", "operator", "exchanged"),
    [
        ("gcn", "gcn_sum", {}),
        ("gat", "neighbour_attention", {}),
        ("gatv2", "pair_score", {"neighbour_attention": referenced_attention}),
        ("gatv2", "neighbour_attention", {"pair_score": referenced_scores}),
        ("transformer", "dot_attention", {}),
    ],
)
def test_second_derivatives_are_refused_by_name(layer, operator, exchanged, monkeypatch):
    batch = BATCH.replace(x=BATCH.x.clone().requires_grad_())
    for name, reference in exchanged.items():
        monkeypatch.setattr(f"staticgraph.nn.fused.gat.{name}", reference)
    model = LAYERS[layer]()
    model.norm, model.pool = nn.Identity(), lambda x, _: x[: CAPACITY[2]]
    sg.convert(model, kernels="all")
    out = sg.StaticGraphRunner(model, [CAPACITY], forward=call)(batch)
    (force,) = torch.autograd.grad(out.sum(), batch.x, create_graph=True)
    with pytest.raises(RuntimeError, match=f"^staticgraph::{operator} has no second derivative"):
        force.square().sum().backward()
