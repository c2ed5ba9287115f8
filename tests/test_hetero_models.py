"""Several types: stock heterogeneous models on padded batches equal plain PyG without padding.

The models are PyG's own (``to_hetero``, ``HeteroConv``, HGT, HAN), unedited. Each runs on the same
molecules unpadded and in static batches, whose padding holds garbage of scale 1,000 in every row
of every type; outputs, loss, all gradients and all buffers are compared in float64.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from support.alike import assert_same_state, sgd, update
from support.hetero_graphs import by_destination, from_molecule
from support.parity import call, differences, plain_step, poisoned, static_step
from support.rewritten import fired
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import (
    BatchNorm,
    GATConv,
    GCNConv,
    GINConv,
    HANConv,
    HeteroConv,
    HeteroDictLinear,
    HGTConv,
    Linear,
    SAGEConv,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
    to_hetero,
)
from torch_geometric.nn.aggr import LSTMAggregation

import staticgraph as sg

WIDTH = 8
CHOSEN = 24


@pytest.fixture(scope="module")
def molecules(esol, hiv):
    single = [int(i) for i in (esol.sizes[:, 1] == 0).nonzero()[0][:1]]
    joined = [
        i for i in range(60) if from_molecule(hiv[i])["ring", "beside", "ring"].edge_index.numel()
    ]
    made = [from_molecule(esol[i], torch.float64) for i in (*range(CHOSEN), *single)]
    made += [from_molecule(hiv[i], torch.float64) for i in joined[:2]]
    for graph in made:
        graph.y = graph.y[:, :1]
    assert any(not graph["ring"].num_nodes for graph in made)
    assert any(not graph["bond"].num_nodes for graph in made)
    assert any(graph["ring", "beside", "ring"].edge_index.numel() for graph in made)
    return made


@pytest.fixture(scope="module")
def store(molecules):
    return sg.GraphStore.from_pyg(molecules)


@pytest.fixture(scope="module")
def batches(store):
    """An exact batch and a packed one."""
    exact = sg.plan_buckets(store, batch_size=8)
    packed = sg.plan_buckets(store, graphs=20)
    return [next(iter(sg.StaticLoader(store, plan))).clone() for plan in (exact, packed)]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda view: pickle.loads(pickle.dumps(view))]
)
def test_a_copy_of_a_types_view_is_of_its_own(batches, copied):
    view = batches[0]["atom"]
    other, before = copied(view), view.x.clone()
    assert sorted(other) == sorted(view)
    other.x = other.x + 1
    other.h = other.x
    assert torch.equal(view.x, before)
    assert torch.equal(other.x, before + 1)
    assert "h" not in view


class Encoder(nn.Module):
    """A plain model of convolutions, norms and activations, for ``to_hetero``."""

    def __init__(self) -> None:
        super().__init__()
        self.first = SAGEConv((-1, -1), WIDTH)
        self.norm = BatchNorm(WIDTH)
        self.second = SAGEConv((-1, -1), WIDTH, aggr="max")

    def forward(self, x, edge_index):
        x = self.norm(self.first(x, edge_index)).relu()
        return self.second(x, edge_index)


class Pooled(nn.Module):
    """Any encoder of dictionaries, and one value per molecule from pools of all types."""

    def __init__(self, encoder: nn.Module, types: list[str]) -> None:
        super().__init__()
        self.encoder = encoder
        self.types = types
        self.last = LSTMAggregation(WIDTH, WIDTH)
        self.head = nn.Linear(3 * WIDTH, 1)

    def forward(self, data):
        h = self.encoder(data.x_dict, data.edge_index_dict)
        first, second, third = ((h[kind], data[kind].batch) for kind in self.types)
        pooled = [
            global_mean_pool(*first, data.num_graphs),
            global_max_pool(*second, data.num_graphs),
            self.last(*third, dim_size=data.num_graphs),
        ]
        return self.head(torch.cat(pooled, 1))


class Layered(nn.Module):
    """Written by hand: HeteroConv with different convolutions per relation, and a norm per type."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = HeteroDictLinear({"atom": 9, "bond": 3, "ring": 1}, WIDTH)

        def relation(own: type, **options) -> nn.Module:
            return own((WIDTH, WIDTH), WIDTH, **options)

        self.conv = HeteroConv(
            {
                ("atom", "bonded", "atom"): GCNConv(WIDTH, WIDTH),
                ("atom", "ends", "bond"): GINConv(nn.Linear(WIDTH, WIDTH)),
                ("bond", "joins", "atom"): relation(GATConv, add_self_loops=False),
                ("atom", "within", "ring"): relation(SAGEConv, aggr="max"),
                ("ring", "has", "atom"): relation(SAGEConv, aggr="std"),
                ("ring", "beside", "ring"): relation(GATConv, add_self_loops=False),
            },
            aggr="mean",
        )
        self.norms = nn.ModuleDict({kind: nn.BatchNorm1d(WIDTH) for kind in self.embed.lins})

    def forward(self, x_dict, edge_index_dict):
        h = self.embed(x_dict)
        h = self.conv(h, edge_index_dict)
        return {kind: self.norms[kind](value).relu() for kind, value in h.items()}


class Attention(nn.Module):
    """HGT or HAN between two linear layers."""

    def __init__(self, conv: type, metadata) -> None:
        super().__init__()
        self.conv = conv({"atom": 9, "bond": 3, "ring": 1}, WIDTH, metadata=metadata, heads=2)
        self.last = HeteroDictLinear(dict.fromkeys(metadata[0], WIDTH), WIDTH)

    def forward(self, x_dict, edge_index_dict):
        h = self.conv(x_dict, edge_index_dict)
        return self.last(h)


class ByConcatenation(nn.Module):
    """All types in one tensor, as in RGCN: a norm over the nodes of all types."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.ModuleDict({"atom": Linear(9, WIDTH), "bond": Linear(3, WIDTH)})
        self.embed["ring"] = Linear(1, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x_dict, edge_index_dict):
        parts = {kind: self.embed[kind](x) for kind, x in x_dict.items()}
        h = self.norm(torch.cat(list(parts.values())))
        return dict(zip(parts, h.split([len(part) for part in parts.values()]), strict=True))


def encoders(metadata):
    return {
        "to_hetero": lambda: to_hetero(Encoder(), metadata),
        "HeteroConv": Layered,
        "HGT": lambda: Attention(HGTConv, metadata),
        "HAN": lambda: Attention(HANConv, metadata),
        "concatenated": ByConcatenation,
    }


def model_of(name: str, batch) -> nn.Module:
    torch.manual_seed(0)
    types = ["atom", "bond", "ring"]
    model = Pooled(encoders(batch.metadata())[name](), types).double()
    with torch.no_grad():
        model(Batch.from_data_list([by_destination(g) for g in batch.to_data_list()]))
    return model


@pytest.mark.parametrize("which", [0, 1], ids=["exact", "packed"])
@pytest.mark.parametrize("name", list(encoders(([], []))))
def test_padding_of_every_type_is_inert(batches, name, which):
    batch = batches[which]
    model = model_of(name, batch)
    expected = plain_step(model, call, batch)
    for scale in (1.0, 1000.0):
        found, _ = static_step(model, call, poisoned(batch, scale))
        assert differences(expected, found) == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", list(encoders(([], []))))
def test_one_graph_without_unbacked_symbols(batches, name):
    batch = batches[0]
    model = model_of(name, batch)
    found, trace = static_step(model, call, poisoned(batch, 1000.0), trace=True)
    assert trace.static, trace
    assert differences(plain_step(model, call, batch), found) == []


# ---------------------------------------------------------------------- the runner


class PerAtom(nn.Module):
    """A dictionary of outputs, one per type; ``forward`` has the signature of ``to_hetero``."""

    def __init__(self, encoder) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(WIDTH, 1)

    def forward(self, x, edge_index):
        return {kind: self.head(h) for kind, h in self.encoder(x, edge_index).items()}


def initialised(model: nn.Module, store) -> nn.Module:
    """Initialises lazy weights with a small batch, as PyG requires for ``to_hetero`` models."""
    data = Batch.from_data_list([store[0], store[1]])
    with torch.no_grad():
        model.eval()(data.x_dict, data.edge_index_dict)
    return model.train()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "mode"), [("to_hetero", "eager"), ("to_hetero", "fused"), ("HeteroConv", "fused")]
)
def test_targets_of_a_type_are_trained_and_predicted(name, mode, store, molecules):
    encoder = encoders(molecules[0].metadata())[name]()
    model = initialised(PerAtom(encoder).double(), store)
    twin = copy.deepcopy(model)
    plan = sg.plan_buckets(store, batch_size=8)
    runner = sgd_runner(
        model,
        plan,
        mode,
        loss=lambda out, batch: (out["atom"] - batch["atom"].y).square(),
        rate=0.01,
    )
    others = sgd(twin, 0.01)
    for batch in sg.StaticLoader(store, plan, indices=range(CHOSEN), shuffle=True):
        found = runner.step(batch)
        data = Batch.from_data_list(batch.to_data_list())
        expected = (twin(data.x_dict, data.edge_index_dict)["atom"] - data["atom"].y).square()
        update(others, expected.mean())
        torch.testing.assert_close(found, expected.mean().detach(), rtol=1e-9, atol=1e-12)
    assert_same_state(model, twin, rtol=1e-09, atol=1e-12)
    if name == "HeteroConv":  # rings and bonds take part in no loss
        assert fired(runner)["neighbours"] >= 3
        assert fired(runner)["softmax"] == 2
    predicted = runner.predict(molecules)
    assert set(predicted) == {"atom", "bond", "ring"}
    with torch.no_grad():
        for number, graph in enumerate(molecules):
            alone = twin.eval()(graph.x_dict, graph.edge_index_dict)
            for kind, value in alone.items():
                torch.testing.assert_close(predicted[kind][number], value, rtol=1e-9, atol=1e-9)


class Rewriting(nn.Module):
    """Sets, reads and deletes fields of a type, as models of PyG's ``HeteroData`` do."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(9, WIDTH)

    def forward(self, data):
        data = data.clone()
        columns = data["atom"].num_features + data.num_edge_features["atom", "bonded", "atom"]
        data["atom"].x = self.encoder(data["atom"].x)
        data["bond"]["h"] = 2 * data["bond"].x
        assert set(data.h_dict) == {"bond"}
        assert "h" in data["bond"]
        assert "h" not in data["atom"]
        assert data["atom"].get("h") is None
        h = dict(data["bond"].items())["h"].sum(-1, keepdim=True)
        del data["bond"].h
        assert "h" not in data["bond"]
        pooled = global_add_pool(data.x_dict["atom"], data["atom"].batch, data.num_graphs)
        return columns * pooled + global_add_pool(h, data["bond"].batch, data.num_graphs)


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_a_forward_sets_fields_of_a_type(mode, store, molecules):
    if mode == "fused" and torch.__version__ < "2.12":
        pytest.skip("torch 2.11 traces no attribute with a dot in its name")
    model = Rewriting().double()
    runner = sg.StaticGraphRunner(model, sg.plan_buckets(store, batch_size=8), mode)
    expected = model(Batch.from_data_list(molecules))
    torch.testing.assert_close(runner.predict(molecules), expected.detach(), rtol=1e-9, atol=1e-9)
