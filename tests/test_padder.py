"""A padder makes of anybody's batch what a loader would have made of the same graphs.

The oracles: :meth:`StaticBatch.of` over a store, bit for bit; plain PyG and plain torch over the
unpadded batch, in float64; NumPy over the declared rows.
"""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import dataclass
from itertools import chain, product
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.alike import assert_same_state, sgd, update
from support.drawn import examples
from support.graphs import double_graphs, graph_lists, random_graph
from support.index_rules import triplets
from support.places import Place
from support.ranks import on_ranks
from support.runners import sgd_runner
from support.sampled import in_turn
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool

import staticgraph as sg
from staticgraph.batches.padding.padder import unplanned_layout
from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.errors import BadGraph, GraphTooLarge, NotStatic, PaddingLeaks
from staticgraph.runner.counters import counters, no_recompile
from staticgraph.runner.ways import Auto, Stopwatch
from staticgraph.steps.computation.model_setup import Subject

ROOMY = (120, 160, 20)
LR = 2**-7  # a recorded step holds it in float32


def equal_but_ids(one: sg.StaticBatch, other: sg.StaticBatch) -> bool:
    """Whether two batches have the same tensors, bit for bit, but for the graphs' numbers."""
    theirs = dict(other.tensors())
    assert list(one.tensors()) == list(theirs)
    return all(
        value.numpy().tobytes() == theirs[name].numpy().tobytes()
        for name, value in one.tensors().items()
        if name != "graph_ids"
    )


@given(graph_lists(min_size=2), st.booleans())
@examples(30)
def test_a_padded_batch_is_what_a_loader_makes(graphs, keep_order):
    graphs.append(random_graph(np.random.default_rng(0), 4, 5))
    store = sg.GraphStore.from_pyg(graphs, keep_order=keep_order)
    capacity = sg.Capacity.distinct(*ROOMY, edge_reserve=1, node_reserve=2)
    plan = sg.BucketPlan((capacity,), schema=store.schema)
    padder, ids = sg.Padder(plan), range(len(graphs))
    expected = sg.StaticBatch.of(store, ids, capacity)
    for batch in (graphs, Batch.from_data_list(graphs), store.__getitems__(ids)):
        padded = padder(batch)
        assert equal_but_ids(padded, expected)
        assert equal_but_ids(pickle.loads(pickle.dumps(padded)), padded)
        for one, other in zip(padded.to_data_list(), store, strict=True):
            assert torch.equal(one.x, other.x)


def test_types_and_index_fields_go_through_the_stores_reader(hetero_molecules, triplet_graphs):
    for graphs in (hetero_molecules, triplet_graphs):
        store = sg.GraphStore.from_pyg(graphs)
        plan = sg.plan_stream(store, batch_size=4)
        if graphs is hetero_molecules:
            assert sg.plan_stream(graphs, batch_size=4).capacities == plan.capacities
        collated = Batch.from_data_list(graphs[:4])
        with pytest.raises(TypeError, match="is no padded batch"):
            sg.unpad(None, collated)  # which reads the batch, and leaves it as it is
        for batch in (graphs[:4], collated):
            padded = sg.Padder(plan)(batch)
            capacity = plan.capacities[padded.bucket]
            assert equal_but_ids(
                padded, sg.StaticBatch.of(store, range(4), capacity, padded.bucket)
            )


@pytest.fixture(scope="module")
def hetero_molecules(hiv):
    from support.hetero_graphs import from_molecule

    return [from_molecule(hiv[i]) for i in range(12)]


@pytest.fixture(scope="module")
def triplet_graphs():
    rng = np.random.default_rng(1)
    return [triplets(rng, n) for n in (3, 5, 7, 4, 6, 8)]


# ---------------------------------------------------------------- classes of one's own


@st.composite
def declared(draw: st.DrawFn, batches: int = 1):
    """Draws batches of the same random fields, as dicts, and what their owner says of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    third, shuffled = draw(st.booleans()), draw(st.booleans())
    levels = ["node", "edge", "graph", *["triplet"] * third]
    fields = [
        (
            draw(st.sampled_from(levels)),
            draw(st.sampled_from([(), (1,), (3,), (2, 2)])),
            draw(st.sampled_from([np.float64, np.float32, np.int64, np.bool_, np.uint8])),
            draw(st.integers(1, 3)),
        )
        for _ in range(draw(st.integers(0, 5)))
    ]
    says: dict = {"index": {"edge_index": "node", "_owner": "graph"}, "node": ["h0"]}
    says["graph"] = ["y"]
    if third:
        says["index"]["third"], says["triplet"] = "edge", ["third"]
    for number, (level, *_) in enumerate(fields):
        says.setdefault(level, []).append(f"f{number}")
    drawn = []
    for _ in range(batches):
        nodes = np.array(draw(st.lists(st.integers(1, 6), min_size=2, max_size=6)))
        edges = rng.integers(1, 9, len(nodes))
        begin, of_edge = np.cumsum(nodes) - nodes, np.repeat(np.arange(len(nodes)), edges)
        index = rng.integers(0, 1000, (2, edges.sum())) % nodes[of_edge] + begin[of_edge]
        counts = {"node": nodes.sum(), "edge": edges.sum(), "graph": len(nodes)}
        counts |= {"triplet": 2 * len(nodes)} if third else {}
        batch = {
            "edge_index": rng.permutation(index, axis=1) if shuffled else index,
            "_owner": np.repeat(np.arange(len(nodes)), nodes),
            "h0": rng.normal(size=(nodes.sum(), 2)),
            "y": rng.normal(size=len(nodes)),
        }
        if third:
            batch["third"] = rng.integers(0, edges.sum(), counts["triplet"])
        for number, (level, width, dtype, each) in enumerate(fields):
            rows = counts[level] * (each if level == "graph" else 1)
            batch[f"f{number}"] = (rng.normal(size=(rows, *width)) * 3).astype(dtype)
        drawn.append(({name: torch.from_numpy(value) for name, value in batch.items()}, counts))
    return (drawn[0][0], says, drawn[0][1]) if batches == 1 else (drawn, says)


def capacity_for(counts: dict[str, int]) -> sg.Capacity:
    extra = {name: rows + 90 for name, rows in counts.items() if name == "triplet"}
    return sg.Capacity.distinct(
        counts["node"] + 7, counts["edge"] + 40, counts["graph"] + 3, 0, extra, 1, 2
    )


@given(declared())
@examples(60)
def test_declared_rows_are_copied_and_padding_points_at_padding(drawn):
    batch, says, counts = drawn
    schema = sg.Schema.of_batch(batch, **says)
    assert sg.Schema.from_dict(schema.to_dict()) == schema
    padder = sg.Padder([capacity_for(counts)], schema=schema)
    padded = pickle.loads(pickle.dumps(padder))(batch)
    capacity = padder.plan.capacities[0]
    for name, value in batch.items():
        if name == "_owner":
            continue
        full, dim = padded[name], 1 if name == "edge_index" else 0
        assert full.dtype == value.dtype
        assert torch.equal(full.narrow(dim, 0, value.shape[dim]), value)
    assert torch.equal(padded.batch[: counts["node"]], batch["_owner"])
    assert (padded.batch[counts["node"] :] >= counts["graph"]).all()
    assert (padded.edge_index[:, counts["edge"] :] >= counts["node"]).all()
    for level, rows in counts.items():
        mask = padded[f"{level}_mask"]
        assert torch.equal(mask, torch.arange(capacity.rows(level)) < rows)
    if "third" in batch:
        assert (padded.third[counts["triplet"] :] >= counts["edge"]).all()
    # unpad of pad is the graph, whatever the order of the rows
    owner = batch["_owner"][batch["edge_index"][1]]
    of_edges = torch.arange(capacity.edges)[:, None].double()
    for graph, piece in enumerate(sg.unpad(of_edges, padded)):
        assert torch.equal(piece[:, 0].long(), torch.where(owner == graph)[0])


class Messages(nn.Module):
    """Messages along edges, a sum over each graph; plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.head = nn.Linear(2, 2).double(), nn.Linear(2, 1).double()

    def forward(self, data):
        """``[graphs, 1]``."""
        source, target = data["edge_index"]
        h = data["h0"].index_add(0, target, self.lin(data["h0"])[source].tanh())
        return self.head(h.new_zeros(len(data["y"]), 2).index_add(0, data["_owner"], h))


@given(declared(), st.integers(0, 2**32 - 1))
@examples(30)
def test_padding_of_a_declared_batch_is_inert(drawn, seed):
    batch, says, counts = drawn
    schema = sg.Schema.of_batch(batch, **says)
    padder = sg.Padder([capacity_for(counts)], schema=schema, like=batch)
    padded = padder(batch)
    model, generator = Messages(), torch.Generator().manual_seed(seed)
    garbage = torch.randn(padded["h0"].shape, generator=generator).double() * 1e3
    padded["h0"][counts["node"] :] = garbage[counts["node"] :]
    out = model(padded)
    sg.masked_mean(out**2, padded).backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    expected = model(batch)
    (expected**2).mean().backward()
    assert torch.allclose(torch.stack(sg.unpad(out, padded)), expected, rtol=1e-10, atol=1e-12)
    expected = [p.grad for p in model.parameters()]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@given(declared(3))
@examples(8)
def test_declared_batches_are_recorded_once_and_replayed_like_plain_torch(drawn):
    """Laws 3, 5 and 6, with garbage in the padding of every batch."""
    batches, says = drawn
    example = batches[0][0]
    most = {level: max(counts[level] for _, counts in batches) for level in batches[0][1]}
    schema, place = sg.Schema.of_batch(example, **says), Place("cpu")
    padder = sg.Padder([capacity_for(most)], schema=schema, like=example)
    model = Messages()
    plain = copy.deepcopy(model)
    optimizers = [sgd(each, LR) for each in (model, plain)]
    subject = Subject(model, lambda out, batch: (out[:, 0] - batch["y"]) ** 2, optimizers[0])
    recording = sg.Recording(recorder=place.recorder)
    runner = sg.StaticGraphRunner(subject, padder, "cuda-graph", recording=recording)
    runner.warmup(padder.pad(example))
    copied = pickle.loads(pickle.dumps(padder))
    with no_recompile():
        for batch, counts in batches * 2:
            padded = padder(batch)
            assert equal_but_ids(padder.pad(batch), copied.pad(batch))
            padded["h0"][counts["node"] :] = 1e3 * torch.randn(2).double()
            expected = ((plain(batch)[:, 0] - batch["y"]) ** 2).mean()
            update(optimizers[1], expected)
            assert torch.allclose(runner.step(padded), expected, rtol=1e-10)
    assert_same_state(model, plain, rtol=1e-09, atol=1e-11)
    assert [each.recorded for each in place.recorders] == [2]


class Pairs(nn.Module):
    """An energy and a value per atom, over the pairs of atoms of each dense ``[B, N]`` molecule."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 1).double()

    def forward(self, data):
        """``[B, 1]`` and ``[B, N]``."""
        apart = (data["pos"][:, :, None] - data["pos"][:, None]).square().sum(-1)
        both = data["mask"][:, :, None] & data["mask"][:, None]
        atoms = torch.where(both, (-apart).exp(), 0).sum(2) * data["charge"]
        weighed = self.lin(data["pos"]).squeeze(2) * atoms * data["mask"]
        return weighed.sum(1, keepdim=True), atoms


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
@examples(20)
def test_dense_molecules_are_padded_in_both_dimensions(atoms, seed):
    """The oracle: the model over the user's own dense batch, padded to its largest molecule."""
    generator, most = torch.Generator().manual_seed(seed), max(atoms)
    batch = {
        "pos": torch.randn(len(atoms), most, 3, generator=generator).double(),
        "charge": torch.rand(len(atoms), most, generator=generator).double(),
        "mask": torch.arange(most) < torch.tensor(atoms)[:, None],
        "y": torch.randn(len(atoms), 1, generator=generator).double(),
    }
    schema = sg.Schema.of_batch(batch, dense=["pos", "charge"], graph=["y"], pad={"charge": 7})
    assert sg.Schema.from_dict(schema.to_dict()) == schema
    padder = sg.Padder([(40, 1, 9, 8)], schema=schema, like=batch)
    padded = pickle.loads(pickle.dumps(padder))(batch)
    assert (padded["pos"].shape, padded["mask"].shape) == ((9, 8, 3), (9, 8))
    assert padded["mask"].sum() == sum(atoms)
    assert padded["charge"][~padded["mask"]].eq(7).all()
    assert padded["pos"][~padded["mask"]].eq(0).all()
    pieces = sg.unpad(padded["pos"], padded)
    assert [len(piece) for piece in pieces] == atoms
    assert torch.equal(torch.cat(pieces), batch["pos"][batch["mask"]])
    model = Pairs()
    energy, each = model(padded)
    sg.masked_mean((energy - padded["y"]) ** 2, padded).backward()
    found = model.lin.weight.grad.clone()
    model.zero_grad()
    expected, own = model(batch)
    ((expected - batch["y"]) ** 2).mean().backward()
    assert torch.allclose(torch.stack(sg.unpad(energy, padded)), expected, rtol=1e-10)
    assert torch.allclose(torch.cat(sg.unpad(each, padded)), own[batch["mask"]], rtol=1e-10)
    assert torch.allclose(found, model.lin.weight.grad, rtol=1e-9, atol=1e-12)
    again = sg.StaticGraphRunner(model, padder, "eager").predict(batch)
    assert torch.allclose(again[0], expected, rtol=1e-10)
    assert torch.allclose(torch.cat(again[1]), own[batch["mask"]], rtol=1e-10)


@dataclass(frozen=True, slots=True)
class Inner:
    """A graph inside of a batch."""

    h: torch.Tensor
    ends: torch.Tensor
    of: torch.Tensor
    atoms: int
    name: str = "kept"
    unlisted: torch.Tensor | None = None


class Outer(NamedTuple):
    """A batch of a user's own class."""

    graph: Inner
    cell: torch.Tensor
    charge: torch.Tensor


def test_a_batch_of_the_users_class_comes_back_with_padding_as_declared():
    inner = Inner(torch.randn(5, 3), torch.tensor([[2, 4, 4], [3, 2, 3]]),
                  torch.tensor([0, 0, 1, 1, 1]), 5, unlisted=torch.ones(5))  # fmt: skip
    outer = Outer(inner, torch.randn(6, 3), torch.tensor([1, -1], dtype=torch.int8))
    schema = sg.Schema.of_batch(
        outer,
        node=["graph.h"],
        edge=["graph.ends"],
        graph=["cell", "charge"],
        index={"graph.ends": "node", "graph.of": "graph"},
        pad={"cell": torch.eye(3), "charge": 7},
    )
    padded = sg.Padder([(12, 9, 5)], schema=schema, like=outer)(outer)
    assert (type(padded), type(padded.graph)) == (Outer, Inner)
    assert (padded.graph.name, padded.graph.unlisted) == ("kept", None)
    assert padded.cell[6:].view(-1, 3, 3).eq(torch.eye(3)).all()
    assert padded.charge.tolist()[2:] == [7] * (len(padded.charge) - 2)
    assert (padded.graph.ends[:, 3:] >= 5).all()
    assert [len(piece) for piece in sg.unpad(padded.graph.h, padded)] == [2, 3]
    assert [len(piece) for piece in sg.unpad(padded.graph.ends.T, padded)] == [0, 3]
    parts = sg.Padder([(4, 9, 3)], schema=schema, overflow="split").pad(outer)
    assert [part.real_edges for part in parts] == [0, 3]


@dataclass(frozen=True, slots=True)
class Molecules:
    x: torch.Tensor
    bonds: torch.Tensor
    mol: torch.Tensor
    y: torch.Tensor


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 1).double()

    def forward(self, x, mol, y):
        return y.new_zeros(len(y), 1).index_add(0, mol, self.lin(x))


class Whole(ByName):
    def forward(self, molecules):  # a name that means nothing to the library
        return super().forward(*(field_of(molecules, name) for name in ("x", "mol", "y")))


def field_of(batch, name):
    return batch[name] if isinstance(batch, dict | Fields) else getattr(batch, name)


CALLED = list(product([ByName, Whole], [dict, Molecules, SimpleNamespace, "Fields"]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("model", "kind", "mode"), in_turn(CALLED, ["fused", "eager"]))
def test_a_model_of_a_batch_of_any_class_is_called_by_names_or_with_the_batch(kind, model, mode):
    values = {"x": torch.randn(5, 2).double(), "bonds": torch.tensor([[0, 1, 4], [1, 0, 3]]),
              "mol": torch.tensor([0, 0, 1, 1, 1]), "y": torch.randn(2, 1).double()}  # fmt: skip
    batch = Fields(values) if kind == "Fields" else kind(**values)
    index = {"bonds": "node", "mol": "graph"}
    schema = sg.Schema.of_batch(batch, node=["x"], edge=["bonds"], graph=["y"], index=index)
    padder = sg.Padder([(9, 7, 4)], schema=schema, like=batch)
    padded = padder(batch)
    assert type(padded) is type(batch)
    assert torch.equal(torch.cat(sg.unpad(field_of(padded, "x"), padded)), values["x"])
    assert (field_of(padded, "bonds")[:, 3:] >= 5).all()
    if kind == "Fields":
        assert list(padded.keys()) == list(values)
    net = model()
    plain = ByName.forward(net, *(values[name] for name in ("x", "mol", "y")))

    def loss(out, batch):
        return (out - field_of(batch, "y")).square()

    runner = sgd_runner(net, padder, mode, loss=loss)
    expected = (plain - values["y"]).square().mean().item()
    assert runner.step(padded).item() == pytest.approx(expected, rel=1e-12)


def test_a_batch_made_by_hand_is_told_how_to_say_its_rows():
    batch = Batch.from_data_list(GRAPHS[:3])
    for kind in (Batch, Data):
        by_hand = kind(x=batch.x, edge_index=batch.edge_index, batch=batch.batch)
        with pytest.raises(TypeError, match=r"from_data_list did not make .*Schema\.of_batch"):
            sg.Padder([ROOMY])(by_hand)


class Fields:
    """What a ``TensorDict`` offers, and no mapping."""

    def __init__(self, values: dict) -> None:
        self._values = values

    def __copy__(self):
        return Fields(dict(self._values))

    def keys(self):
        return self._values.keys()

    def __getitem__(self, name):
        return self._values[name]

    def __setitem__(self, name, value):
        self._values[name] = value

    def to(self, device):
        return Fields({name: value.to(device) for name, value in self._values.items()})


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ({"node": ["nothing"]}, "a dict has no 'nothing'"),
        ({"node": ["x"], "graph": ["y"], "index": {"of": "graph"}}, "has 5 rows, and the batch 2"),
        ({"node": ["x"], "index": {"pick": "node"}}, "list it in node=, edge=, graph="),
        ({"node": ["x"], "pad": {"y": 1}}, "pad= names 'y', which is of no level"),
        ({"node": ["half"]}, r"'half' is a Tensor \(torch.bfloat16\); .*give it so"),
        ({"node": ["x"], "index": {"y": "graph"}}, r"'y' is a Tensor .*float32.* whole numbers"),
    ],
)
def test_what_is_said_wrongly_of_a_batch_is_named(says, message):
    batch = {"x": torch.ones(4, 2), "y": torch.ones(5), "of": torch.tensor([0, 0, 1, 1]),
             "pick": torch.tensor([1, 2]), "half": torch.ones(4).bfloat16()}  # fmt: skip
    with pytest.raises(ValueError, match=message):
        sg.Schema.of_batch(batch, **says)


def test_pairs_of_edges_that_have_no_other_field():
    batch = {"x": torch.ones(4, 2), "of": torch.tensor([0, 0, 1, 1]),
             "bonds": torch.tensor([[0, 1], [1, 0], [2, 3]])}  # fmt: skip
    index = {"of": "graph", "bonds": "node"}
    schema = sg.Schema.of_batch(batch, node=["x"], edge=["bonds"], index=index)
    padded = sg.Padder([(9, 7, 4)], schema=schema, like=batch)(batch)
    assert torch.equal(padded["bonds"][:3], batch["bonds"])
    assert [len(piece) for piece in sg.unpad(padded["bonds"], padded)] == [2, 1]


def test_batches_that_differ_from_the_plans_are_refused():
    batch = {"x": torch.ones(4, 2), "of": torch.tensor([0, 0, 1, 1])}
    padder = sg.Padder(
        [(9, 4, 5)], schema=sg.Schema.of_batch(batch, node=["x"], index={"of": "graph"})
    )
    with pytest.raises(BadGraph, match="'x' is float64"):
        padder({**batch, "x": batch["x"].double()})
    with pytest.raises(TypeError, match="which rows a dict has is not known"):
        sg.Padder([(9, 4, 5)])(batch)


# ---------------------------------------------------------------- loaders and runners


class Net(nn.Module):
    """A GIN with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = GINConv(nn.Linear(4, 4)), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)

    def forward(self, data):
        """``[graphs, 1]``."""
        h = self.norm(self.conv(data.x, data.edge_index)).relu()
        return self.head(global_add_pool(h, data.batch))


def twins(kind=Net):
    net = kind().double()
    return net, copy.deepcopy(net)


GRAPHS = double_graphs([3, 9, 4, 7, 12, 5, 6, 8, 10, 3, 4, 11] * 5)


def plain_steps(model, batches, lr=0.01):
    """Losses of plain PyG's steps."""
    optimizer = sgd(model, lr)
    for graphs in batches:
        batch = Batch.from_data_list(graphs)
        loss = F.mse_loss(model(batch), batch.y)
        update(optimizer, loss)
        yield float(loss.detach())


def assert_follows(runner, net, plain, batches, lr=0.01, given=lambda number, batch: batch):
    """Steps over what is ``given`` of each batch are plain PyG's, and so are the models."""
    for number, expected in enumerate(plain_steps(plain, batches, lr)):
        loss = runner.step(given(number, batches[number]))
        assert float(loss) == pytest.approx(expected, rel=1e-10)
    assert_same_state(net, plain, rtol=1e-09, atol=1e-11)


def test_a_runner_pads_the_batches_of_a_users_own_loader():
    net, plain = twins()
    plan = sg.plan_stream(GRAPHS, batch_size=8, buckets=2)
    runner = sgd_runner(net, plan, rate=0.01)
    weights = torch.arange(1.0, 61)
    generator = torch.Generator().manual_seed(1)
    loader = DataLoader(
        GRAPHS, 8, sampler=WeightedRandomSampler(weights, 40, generator=generator), collate_fn=list
    )
    batches = list(loader)
    ways = (lambda b: b, Batch.from_data_list, sg.Padder(plan))
    assert_follows(runner, net, plain, batches, given=lambda k, batch: ways[k % 3](batch))
    graphs = GRAPHS[:10]
    batch = Batch.from_data_list(graphs)
    with torch.no_grad():
        expected = plain.eval()(batch)
    assert torch.allclose(runner.predict(batch), expected, rtol=1e-9)
    result = runner.eval_step(graphs[:8])
    assert torch.allclose(result.out[:8], expected[:8], rtol=1e-9)


def test_a_plan_for_a_list_of_graphs_warms_up_with_them():
    net, plain = twins()
    plan = sg.plan_stream(GRAPHS, batch_size=8, buckets=2)
    runner = sgd_runner(net, plan, "auto", rate=0.01).warmup()
    timed = {(choice.bucket, choice.phase) for choice in runner.report().choices}
    assert timed == {(bucket, phase) for bucket in (0, 1) for phase in ("step", "eval")}
    padder = sg.Padder(plan)
    batches = [GRAPHS[8 * k : 8 * k + 8] for k in range(7)]
    assert_follows(runner, net, plain, batches, given=lambda _, batch: padder(batch))


def test_a_warm_up_without_fields_is_refused():
    plan = sg.plan_stream([(g.num_nodes, g.num_edges) for g in GRAPHS], batch_size=8)
    net = Net().double()
    runner = sgd_runner(net, plan, "auto", rate=0.01)
    with pytest.raises(ValueError, match="does not say what fields a graph has: pass warmup"):
        runner.warmup()
    batch = sg.Padder(plan)(GRAPHS[:8])
    runner.warmup(batch)
    # Only the batch's own bucket can be timed; the others wait for a first batch.
    timed = [(choice.bucket, choice.phase) for choice in runner.report().choices]
    assert timed == [(1, "eval"), (1, "step")]


@pytest.mark.slow
def test_worker_processes_make_the_same_batches_and_nothing_compiles_again():
    plan = sg.plan_stream(GRAPHS, batch_size=8, buckets=2)
    store = sg.GraphStore.from_pyg(GRAPHS)

    def epoch(data, workers):
        generator = torch.Generator().manual_seed(2)
        return list(
            DataLoader(
                data,
                8,
                shuffle=True,
                generator=generator,
                num_workers=workers,
                collate_fn=sg.Padder(plan),
            )
        )

    for data in (GRAPHS, store):
        alone, together = epoch(data, 0), epoch(data, 2)
        assert all(equal_but_ids(a, b) for a, b in zip(alone, together, strict=True))
    net = Net().double()
    runner = sgd_runner(net, plan, "fused", rate=0.01)
    batches = epoch(GRAPHS, 2)
    for batch in batches:
        runner.step(batch)
    before = counters()
    with no_recompile():
        for batch in epoch(GRAPHS, 0):
            runner.step(batch)
    assert counters().batches - before.batches == len(batches)
    assert 0 < counters().padding < 1
    with pytest.raises(NotStatic, match="inside no_recompile"), no_recompile():
        runner.eval_step(batches[0])


def test_a_batch_in_parts_is_one_update():
    net, plain = twins()
    net.norm = plain.norm = nn.Identity()
    padder = sg.Padder([(30, 75, 7)], overflow="split")
    runner = sgd_runner(net, padder, rate=0.01)
    batches = [GRAPHS[k : k + 9] for k in range(0, 45, 9)]
    assert all(len(padder.pad(batch)) > 1 for batch in batches)
    ways = (lambda b: b, Batch.from_data_list)
    assert_follows(runner, net, plain, batches, given=lambda k, batch: ways[k % 2](batch))
    assert "10 fitted no bucket" in str(runner.report())
    parts = padder.pad(Batch.from_data_list(GRAPHS[:9]))
    pieces = [graph for part in parts for graph in part.to_data_list()]
    for one, other in zip(pieces, GRAPHS[:9], strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.edge_index, other.edge_index)


def test_padding_is_checked_in_the_parts_of_a_batch():
    class Mixes(Net):
        def forward(self, data):
            h = self.conv(data.x, data.edge_index)
            return self.head(global_add_pool(h - h.mean(0), data.batch))

    net = Mixes().double()
    padder = sg.Padder([(30, 75, 7)], overflow="split")
    with pytest.raises(PaddingLeaks):
        sgd_runner(net, padder).step(GRAPHS[:9])


@pytest.mark.parametrize("mode", ["eager", pytest.param("fused", marks=pytest.mark.slow)])
def test_a_batch_that_fills_too_little_of_its_bucket_runs_in_eager_at_its_own_size(mode):
    net, plain = twins()
    padder = sg.Padder([(60, 150, 12)], min_fill=0.5)
    runner = sgd_runner(net, padder, mode, rate=0.01)
    batches = [GRAPHS[:6], GRAPHS[:2], GRAPHS[6:12], GRAPHS[7:10], GRAPHS[:3]]
    assert_follows(runner, net, plain, batches)
    sparse = padder(GRAPHS[:2])
    assert sparse.num_nodes == sparse.real.nodes + 1
    bucket, own = runner.report().buckets
    assert (padder.counts.unplanned, bucket.batches, own.batches) == (4, 2, 3)
    assert (own.bucket, own.real_graphs) == (-1, 8)
    assert own.step_ms is not None
    assert re.search(r"own sizes  +-  +-  +-  +3 ", str(runner.report()))
    assert "4 ran in eager at their own size" in str(runner.report())
    out = runner.eval_step(GRAPHS[:2]).out
    assert torch.allclose(out[:2], plain.eval()(Batch.from_data_list(GRAPHS[:2])), rtol=1e-9)


SEEN: list[tuple[bool, int]] = []


class Seen(Net):
    """Notes whether it trains, and the rows of nodes."""

    def forward(self, data):
        if not torch.compiler.is_compiling():
            SEEN.append((self.training, len(data.x)))
        return super().forward(data)


def stopwatch_of(times):
    """Times by the way, whether the model trains, and the rows it had last in eager, which runs
    before any other way."""

    class Told(Stopwatch):
        def milliseconds(self, way, step):
            step()
            return times(way == "eager", *SEEN[-1])

    return Told


def quick(eager, trains, rows):
    return 1 if eager else 2


def quick_in_steps(eager, trains, rows):
    return 2 if eager else 4 if trains else 1


def slow(eager, trains, rows):
    """Eager takes 1 ms and 0.1 ms per row of nodes, ``fused`` half of the bucket's."""
    return (1 + 0.1 * rows) * (1 if eager else 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("times", [quick, quick_in_steps])
def test_batches_keep_their_size_where_every_phase_runs_in_eager(times):
    (net, plain), padder = twins(Seen), sg.Padder([(101, 250, 20)])
    auto = Auto(ways=("eager", "fused"), stopwatch=stopwatch_of(times))
    runner = sgd_runner(net, padder, auto, rate=0.01)
    runner.warmup(sg.GraphStore.from_pyg(GRAPHS, keep_order=True))
    assert_follows(runner, net, plain, [GRAPHS[:15], GRAPHS[3:9]])
    ways = {choice.phase: choice.way for choice in runner.report().choices}
    if times is quick:
        assert ways == {"eval": "eager", "step": "eager"}
        assert padder(GRAPHS[:15]).num_nodes == sum(graph.num_nodes for graph in GRAPHS[:15]) + 1
    else:
        assert ways == {"eval": "fused", "step": "eager"}
        assert padder(GRAPHS[:15]).num_nodes == 101


@pytest.mark.slow
def test_auto_measures_the_filling_below_which_eager_is_faster():
    net = Seen().double()
    padder = sg.Padder([(101, 250, 20)])
    auto = Auto(ways=("eager", "fused"), stopwatch=stopwatch_of(slow))
    runner = sgd_runner(net, padder, auto, rate=0.01)
    runner.warmup(sg.GraphStore.from_pyg(GRAPHS, keep_order=True))
    (choice,) = (each for each in runner.report().choices if each.phase == "step")
    # Without rows there is one row of padding: (5.55 - 1.1) / (11.1 - 1.1).
    assert choice.least_fill == pytest.approx(0.445)
    assert "a batch that fills less than 44%: eager, unpadded" in str(choice)
    assert padder.least_fills == {0: choice.least_fill}
    sparse, dense = (padder(GRAPHS[:count]) for count in (3, 11))
    assert (sparse.bucket, dense.bucket) == (-1, 0)
    runner.step(GRAPHS[:3])
    runner.step(GRAPHS[:11])
    assert (padder.counts.unplanned, runner.report().buckets[0].batches) == (2, 1)


@pytest.mark.parametrize(
    "mode", ["eager", "cuda-graph", pytest.param("fused", marks=pytest.mark.slow)]
)
def test_an_added_capacity_is_recorded_once_and_what_it_replaces_is_freed(mode):
    net, plain = twins()
    place = Place("cpu")
    padder = sg.Padder([(60, 150, 12)], overflow="grow", max_growth=2)
    runner = sgd_runner(net, padder, mode, rate=LR, recorder=place.recorder)
    padder.pad(GRAPHS[:2])  # learns the fields
    store = sg.GraphStore.from_pyg(GRAPHS[:6], keep_order=True)
    runner.warmup(store)
    batches = [GRAPHS[:6], GRAPHS[:12], GRAPHS[6:18], GRAPHS[:30], GRAPHS[3:9]]
    assert_follows(runner, net, plain, batches, LR)
    assert (padder.counts.grown, padder.counts.overflowed) == (2, 2)
    assert len(runner.plan.capacities) == 2  # the first one that was added is gone
    if mode == "cuda-graph":
        # Step and evaluation of one bucket, then of two, at each of two growths.
        assert [each.recorded for each in place.recorders] == [2, 4, 4]
        assert [each.closed for each in place.recorders] == [True, True, False]
    assert not runner.report().fallbacks[1:]  # the padder's own line alone
    with no_recompile():
        runner.step(GRAPHS[:30])
    with pytest.raises(GraphTooLarge, match="after 2 growths"):
        runner.step(GRAPHS)


def grown_on_rank(mode: str) -> tuple:
    """Trains on this rank's own batches; returns the losses, the plan, the model and counts."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    net = Net().double()
    net.norm = nn.Identity()
    padder = sg.Padder([(60, 150, 12)], overflow="grow", max_growth=2)
    place = Place("cpu")
    runner = sgd_runner(net, padder, mode, rate=LR, recorder=place.recorder)
    padder.pad(GRAPHS[:2])  # learns the fields
    runner.warmup(sg.GraphStore.from_pyg(GRAPHS[:6]))
    losses = [float(runner.step(graphs)) for graphs in BATCHES_OF_RANKS[rank]]
    if rank:  # an evaluation is this rank's own business, also of what fits no bucket
        out = runner.eval_step(GRAPHS).out[:60]
        assert torch.allclose(out, runner.predict(GRAPHS), rtol=1e-9)
    plan = [str(each) for each in runner.plan.capacities]
    counts = [(each.recorded, each.closed) for each in place.recorders]
    return losses, plan, net.state_dict(), (counts, padder.counts.grown, padder.counts.overflowed)


# Rank 1 alone overflows in the second step, rank 0 alone in the fourth, by more.
BATCHES_OF_RANKS = (
    [GRAPHS[0:5], GRAPHS[10:15], GRAPHS[20:25], GRAPHS[25:55], GRAPHS[55:60]],
    [GRAPHS[5:10], GRAPHS[30:50], GRAPHS[:2], GRAPHS[:5], GRAPHS[5:9]],
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "cuda-graph"])
def test_ranks_agree_on_a_capacity_that_one_of_them_needs(mode):
    (losses, plan, model, first), other = on_ranks(2, grown_on_rank, mode)
    torch.manual_seed(0)
    plain = Net().double()
    plain.norm = nn.Identity()
    steps = [[*one, *two] for one, two in zip(*BATCHES_OF_RANKS, strict=True)]
    assert losses == pytest.approx(list(plain_steps(plain, steps, LR)), rel=1e-10)
    assert (losses, plan) == (other[0], other[1])
    assert len(plan) == 2
    assert_same_state(plain, model, rtol=1e-09, atol=1e-11)
    # As alone: step and evaluation of one bucket, then of two, at each of two growths.
    recorded = [(2, True), (4, True), (4, False)] if mode == "cuda-graph" else []
    assert first == (recorded, 2, 1)
    assert other[3] == (recorded, 2, 2)


# ---------------------------------------------------------------- samplers in a StaticLoader


def ids_of(loader, most=None):
    batches = []
    for batch in loader:
        batches.append(batch.graph_ids[: batch.real_graphs].tolist())
        if most == len(batches):
            break
    return batches


def test_a_sampler_draws_the_graphs_of_every_epoch():
    store = sg.GraphStore.from_pyg(GRAPHS)
    plan = sg.plan_buckets(store, batch_size=8)
    sampler = WeightedRandomSampler(torch.arange(60.0), 100)

    def loader(**options):
        return sg.StaticLoader(store, plan, sampler=sampler, seed=3, **options)

    whole = loader()
    first, second = ids_of(whole), ids_of(whole)
    drawn = sorted(chain(*first))
    assert len(drawn) == 100
    assert 0 not in drawn
    assert [len(ids) for ids in first] == [8] * 12 + [4]
    assert first != second
    torch.manual_seed(9)  # the process's own random state plays no part
    resumed, half = loader(num_workers=2), loader()
    assert ids_of(half, 5) == first[:5]
    resumed.load_state_dict(half.state_dict())
    assert ids_of(resumed) == first[5:]
    ranks = [ids_of(loader(rank=rank, world_size=2)) for rank in (0, 1)]
    assert sorted(chain(*ranks[0], *ranks[1])) == drawn
    with pytest.raises(IndexError, match="entry 1 of the sampler's draws names graph 500"):
        list(sg.StaticLoader(store, plan, sampler=[3, 500]))
    with pytest.raises(ValueError, match=r"sampler's draws: entry 1 is 1.5, which is not a whole"):
        list(sg.StaticLoader(store, plan, sampler=[3, 1.5]))
    with pytest.raises(TypeError, match="draws lists of graphs: give it as batch_sampler="):
        list(sg.StaticLoader(store, plan, sampler=[[3], [1]]))
    with pytest.raises(ValueError, match="sampler= and shuffle= exclude each other"):
        loader(shuffle=True)
    draws = [
        loader(world_size=2).batcher,
        sg.StaticLoader(store, plan, sampler=range(9), world_size=2).batcher,
    ]
    assert len({batcher.shared()["the loader's sampler's draw"] for batcher in draws}) == 2
    share = DistributedSampler(range(60), 2, 0)
    with pytest.raises(ValueError, match="would take a share again: leave it out"):
        sg.StaticLoader(store, plan, sampler=share, world_size=2)


def test_a_batch_samplers_batches_are_taken_as_they_are():
    store = sg.GraphStore.from_pyg(GRAPHS)
    draw = RandomSampler(range(60), generator=torch.Generator().manual_seed(1))
    batches = BatchSampler(draw, 7, drop_last=False)
    plan = sg.plan_stream(store, 7, buckets=2, miss=1e-6)
    loader = sg.StaticLoader(store, plan, batch_sampler=batches, seed=5)
    once, again = (
        ids_of(loader),
        ids_of(sg.StaticLoader(store, plan, batch_sampler=batches, seed=5)),
    )
    assert once == again
    assert [len(ids) for ids in once] == [7] * 8 + [4]
    assert sorted(chain(*once)) == list(range(60))
    with pytest.raises(GraphTooLarge, match="batch 0 of the batch sampler, 60 graphs"):
        ids_of(sg.StaticLoader(store, plan, batch_sampler=[list(range(60))]))


@pytest.mark.parametrize("moved", [500, -500])
def test_an_index_outside_of_its_batch_is_named(moved):
    """It would read rows of padding, and change results in silence."""
    graphs = double_graphs([3, 4, 5])
    padder = sg.Padder(sg.plan_stream(graphs, batch_size=3))
    batch = Batch.from_data_list(graphs)
    padder(batch)
    batch.edge_index[0, 2] = moved
    with pytest.raises(sg.BadGraph, match=f"'edge_index' has {moved} at 2, and the batch has 12"):
        padder(batch)
    fields = {"x": torch.ones(3, 2), "pairs": torch.tensor([[0, 1], [1, 0]])}
    schema = sg.Schema.of_batch(fields, node=["x"], edge=["pairs"], index={"pairs": "node"})
    declared = sg.Padder(sg.plan_stream([(3, 2)], 1, schema=schema), schema=schema)
    fields["pairs"][1, 1] = moved
    with pytest.raises(sg.BadGraph, match=f"has {moved} at 1, and the batch has 3 rows of node"):
        declared(fields)


@pytest.mark.parametrize("sort_edges", [False, True])
def test_a_batch_that_was_changed_is_read_as_a_model_reads_it_or_refused(sort_edges):
    """Where nodes began when it was made is no longer true, and gave wrong sums in silence."""
    graphs = [Data(**each.to_dict(), edge_attr=torch.ones(each.num_edges, 1)) for each in GRAPHS]
    plan = sg.plan_stream(graphs, batch_size=4)
    padder = sg.Padder(plan, sort_edges=sort_edges, overflow="grow")
    batch = Batch.from_data_list(graphs[:4])
    padder(batch)
    batch.batch = batch.batch // 2
    assert torch.equal(padder(batch).batch[: batch.num_nodes], batch.batch)
    batch.batch = batch.batch.flip(0)
    with pytest.raises(sg.BadGraph, match="nodes of the batch are not grouped by graph"):
        padder(batch)
    for edges in (batch.edge_index[:, ::2], batch.edge_index.repeat(1, 2)):
        changed = Batch.from_data_list(graphs[:4])
        changed.edge_index = edges
        with pytest.raises(sg.BadGraph, match=rf"'edge_attr' is .*and the plan's.*{edges.size(1)}"):
            padder(changed)


@pytest.mark.parametrize("change", ["fewer", "more", "moved"])
def test_a_batch_of_types_that_was_changed_is_refused(change, hetero_molecules):
    """Its graphs are cut where they were when it was made, so that new rows were left out."""
    store = sg.GraphStore.from_pyg(hetero_molecules)
    padder = sg.Padder(sg.plan_stream(store, batch_size=4))
    batch = Batch.from_data_list(hetero_molecules[:4])
    bonds = batch[batch.edge_types[0]]
    if change == "moved":
        atoms = batch[batch.node_types[0]]
        atoms.batch = atoms.batch.flip(0)
    else:
        rows = [0, 1] if change == "fewer" else [*range(bonds.num_edges), 0]
        bonds.edge_index = bonds.edge_index[:, rows]
    runner = sg.StaticGraphRunner(nn.Linear(1, 1), padder, mode="eager")
    for read in (padder, runner.predict):
        with pytest.raises(
            sg.BadGraph, match=r"when it was made|of other graphs than.*batch them again"
        ):
            read(batch)


class Stacked(Data):
    """A graph with a field that PyG stacks."""

    def __cat_dim__(self, key, value, *args, **kwargs):
        return None if key == "spectrum" else super().__cat_dim__(key, value, *args, **kwargs)


def test_a_field_that_pyg_stacks_is_stacked():
    graphs = [Stacked(**graph.to_dict(), spectrum=torch.randn(4)) for graph in GRAPHS[:6]]
    padded = sg.Padder(sg.plan_stream(graphs, 6))(graphs)
    assert torch.equal(padded.spectrum[:6], Batch.from_data_list(graphs).spectrum)


@pytest.mark.parametrize("collated", [False, True])
def test_containers_of_tensors_are_left_out_and_named(collated):
    graphs = [Data(**graph.to_dict(), hops=[graph.x, graph.x], id="a", charge=1, z=graph.x.numpy())
              for graph in GRAPHS[:6]]  # fmt: skip
    padded = sg.Padder(sg.plan_stream(graphs, 6))(
        Batch.from_data_list(graphs) if collated else graphs
    )
    assert padded.id == ["a"] * 6
    with pytest.raises(AttributeError, match=r"no 'hops'.*give each tensor a field of its own"):
        _ = padded.hops


@pytest.mark.parametrize("options", [{"overflow": "grow"}, {"min_fill": 0.99}], ids=str)
def test_graphs_of_one_size_keep_it_in_every_shape(options):
    """``x.view(-1, nodes, F)`` is right in planned shapes, added ones and a batch's own."""
    graphs = double_graphs([5] * 12)
    padder = sg.Padder(sg.plan_stream(graphs, 4), **options)
    for count in (4, 2, 9 if "overflow" in options else 3):
        padded = padder(graphs[:count])
        windows = padded.x.view(-1, 5, padded.x.size(1))
        assert torch.equal(windows[:count], torch.stack([graph.x for graph in graphs[:count]]))
        assert len(windows) == padded.num_graphs
    assert padder.counts.grown + padder.counts.unplanned > 0
    empty = unplanned_layout(RealCounts(0, 0, 0, 0), padder.plan.capacities[-1], padder.schema)
    assert empty.capacity.nodes == 5 * empty.capacity.graphs
    if "overflow" in options:  # the graphs of other sizes that come later have no common size
        assert padder(double_graphs([7, 5])).capacity.max_graph_nodes >= 7
    with_triplets = sg.Capacity(12, 9, 3, 4, (("triplets", 7),))
    assert (sg.Capacity(12, 9, 3, 4).nodes_each, with_triplets.nodes_each) == (4, 0)


def test_a_graph_without_its_label_is_no_graph_with_label_zero():
    padder = sg.Padder(sg.plan_stream(GRAPHS, 4))
    padder(GRAPHS[:4])
    unlabelled = [graph.clone() for graph in GRAPHS[:4]]
    del unlabelled[2].y
    with pytest.raises(BadGraph, match="graph 2 has no 'y', which the plan expects"):
        padder(unlabelled)
    with pytest.raises(TypeError, match=r"a Data is a single graph.*give a list, \[data\]"):
        padder(GRAPHS[0])
    with pytest.raises(TypeError, match="a Data is a single graph"):
        sg.Padder(padder.plan.capacities)(GRAPHS[0])


def test_a_graph_that_is_too_large_and_rows_that_no_plan_counts_are_named(triplet_graphs):
    padder = sg.Padder(sg.plan_stream(double_graphs([3, 4, 5] * 4), 4), overflow="split")
    with pytest.raises(GraphTooLarge, match=r"a graph of 9 nodes.*graphs of at most 5 nodes"):
        padder(double_graphs([9]))
    with pytest.raises(GraphTooLarge, match=r"5 graphs fits no bucket.* 4 graphs: plan"):
        sg.Padder(padder.plan)(double_graphs([5] * 5))
    with pytest.raises(ValueError, match=r"plan_stream\(sg.GraphStore.from_pyg\(graphs, keep"):
        sg.Padder(sg.plan_stream(triplet_graphs, 4))(triplet_graphs[:4])
