"""What a model returns: the same container comes back, and all tensors in it are treated alike."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from support.alike import assert_same_gradients
from support.runners import sgd_runner
from torch import nn
from torch_geometric.nn import GCNConv, global_add_pool

import staticgraph as sg
from staticgraph.batches.batch.containers import (
    leaves_of,
    parts_of,
    tensors_in,
)

Named = namedtuple("Named", ["graph", "node"])


@dataclass
class Fields:
    graph: torch.Tensor
    node: torch.Tensor


@dataclass(frozen=True)
class Frozen:
    graph: torch.Tensor
    node: torch.Tensor


@dataclass(slots=True)
class Slotted:
    graph: torch.Tensor
    node: torch.Tensor


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    graph: torch.Tensor
    node: torch.Tensor


class Own:
    def __init__(self, graph, node):
        self.graph, self.node = graph, node


def ordered(graph, node):
    return OrderedDict(graph=graph, node=node)


def nested(graph, node):
    return {"all": Named(graph, [node, {"scale": 2.0}])}


KINDS = {
    "tuple": lambda graph, node: (graph, node),
    "list": lambda graph, node: [graph, node],
    "dict": lambda graph, node: {"graph": graph, "node": node},
    "named tuple": Named,
    "ordered dict": ordered,
    "dataclass": Fields,
    "frozen dataclass": Frozen,
    "slotted dataclass": Slotted,
    "frozen slotted dataclass": FrozenSlotted,
    "nested": nested,
}


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.conv, self.head, self.kind = GCNConv(9, 4), nn.Linear(4, 1), kind

    def forward(self, x, edge_index, batch):
        h = self.conv(x.float(), edge_index)
        return self.kind(self.head(global_add_pool(h, batch)), h)


def runner_of(esol, kind, mode):
    torch.manual_seed(0)
    model = Net(kind)
    return sgd_runner(
        model,
        sg.plan_buckets(esol, batch_size=8, indices=range(24)),
        mode,
        loss=lambda out, batch: (tensors_in(out)[0] - batch.y).square(),
        rate=1e-4,
    )


@pytest.mark.sampled(7)
@pytest.mark.parametrize("mode", ["eager", "fused", "cuda-graph"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_container_comes_back_as_it_is(esol, kind, mode):
    """Its padding is zero, and no later replay changes its tensors."""
    runner, plain = runner_of(esol, KINDS[kind], mode), runner_of(esol, KINDS["tuple"], "eager")
    kept = []
    for batch in runner.loader(esol, indices=range(24)):
        assert float(runner.step(batch)) == pytest.approx(float(plain.step(batch)), rel=1e-5)
        runner.model.eval()
        plain.model.eval()
        with torch.no_grad():
            out, expected = runner(batch), plain(batch)
        runner.model.train()
        plain.model.train()
        assert type(out) is type(KINDS[kind](0, 0))
        assert [str(key) for key, _ in parts_of(out)] == [
            str(key) for key, _ in parts_of(KINDS[kind](0, 0))
        ]
        real = batch.real_counts.nodes
        for value, other in zip(tensors_in(out), expected, strict=True):
            assert torch.allclose(value, other, rtol=1e-4, atol=1e-5)
            kept.append((value, value.clone()))
        assert not tensors_in(out)[1][real:].any()
    assert all(torch.equal(value, then) for value, then in kept)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_come_back_through_a_recorded_container(esol, kind):
    runner, plain = runner_of(esol, KINDS[kind], "cuda-graph"), runner_of(esol, Named, "eager")
    for batch in runner.loader(esol, indices=range(24)):
        for each in (runner, plain):
            each.model.zero_grad()
            sum((value**2).sum() for value in tensors_in(each(batch))).backward()
        assert_same_gradients(runner.model, plain.model, rtol=0.0001, atol=1e-05)


@pytest.mark.sampled(2, always=["slotted dataclass"])
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_stand_in_the_same_container(esol, kind):
    graphs = esol[:5]
    found = runner_of(esol, KINDS[kind], "eager").predict(graphs)
    rows, nodes = runner_of(esol, KINDS["tuple"], "eager").predict(graphs)
    assert type(found) is type(KINDS[kind](0, 0))
    leaves = leaves_of(found)
    assert torch.equal(leaves[0], rows)
    assert all(torch.equal(a, b) for a, b in zip(leaves[1:6], nodes, strict=True))


def test_a_class_of_ones_own_is_refused_where_its_tensors_would_change(esol):
    """A recording writes the same memory at each replay; tensors that are not found stay
    uncopied."""
    runner = runner_of(esol, Own, "cuda-graph")
    batch = next(iter(runner.loader(esol, indices=range(24))))
    with pytest.raises(sg.NotStatic, match="the model returns a Own, and tensors in it would"):
        runner.warmup(phases=("eval",))
    with pytest.raises(TypeError, match="tuples, lists, dicts and dataclasses, the model returned"):
        runner_of(esol, Own, "eager").predict([esol[0]])
    assert runner_of(esol, Own, "eager")(batch).node.requires_grad
