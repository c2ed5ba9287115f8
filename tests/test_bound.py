"""Hand-written loops: a bound model computes what plain PyG does on the unpadded graphs, and one
that is not bound warns."""

from __future__ import annotations

import textwrap

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from support.alike import assert_same_gradients, assert_same_state
from support.gine_net import Net as Single
from support.gine_net import batches_of
from support.patience import patience
from support.program import run_program
from support.runners import made_runner
from torch import nn
from torch_geometric.data import Batch, HeteroData
from torch_geometric.nn import global_add_pool, global_mean_pool
from torch_geometric.utils import softmax

import staticgraph as sg

ARGUMENTS = ("x", "edge_index", "edge_attr", "batch")


class Net(Single):
    def forward(self, x, edge_index, edge_attr, batch):
        h = self.conv(self.atoms(x.double()), edge_index, self.bonds(edge_attr.double()))
        return self.head(global_add_pool(h, batch) / 30)


def net():
    torch.manual_seed(0)
    return Net().double()


def called(model, batch):
    return model(*(getattr(batch, name) for name in ARGUMENTS))


def plain_step(model, batch):
    """A step of PyG itself on the unpadded graphs: loss, gradients, statistics."""
    data = Batch.from_data_list(batch.to_data_list())
    loss = F.mse_loss(called(model, data), data.y.double())
    loss.backward()
    return loss


def static_step(model, batch, run=None, inside=True, **options):
    run = model if run is None else run
    with sg.bound(run, batch, **options) as data:
        each = F.mse_loss(called(run, data), data.y.double(), reduction="none")
        loss = sg.masked_mean(each, data)
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return loss


def same(model, other):
    assert_same_gradients(model, other, rtol=1e-09, atol=1e-12)
    assert_same_state(model, other, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("fixed", [None, True])
def test_a_bound_model_is_plain_pyg_on_the_unpadded_graphs(hiv, inside, fixed):
    model, other = net(), net()
    for batch in batches_of(hiv, 4):
        loss = static_step(model, batch, inside=inside, fixed=fixed)
        assert torch.allclose(loss, plain_step(other, batch), rtol=1e-10)
    same(model, other)


def test_a_compiled_model_compiles_once_a_bucket(hiv):
    model, other = net(), net()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=False, fullgraph=True, backend=backend)
    for batch in batches_of(hiv, 6):
        loss = static_step(model, batch, compiled)
        assert torch.allclose(loss, plain_step(other, batch), rtol=1e-10)
    same(model, other)
    assert len(graphs) == 2


@pytest.mark.filterwarnings("error")
def test_what_was_bound_before_is_so_again(hiv):
    one, two = net(), net()
    first, second, _ = batches_of(hiv, 3)
    with sg.bound(one, first):
        before = called(one, first)
        with pytest.raises(ZeroDivisionError), sg.bound(two, second):
            called(two, second).sum().item() // 0
        assert called(one, first).shape == before.shape
    out = called(one.eval(), Batch.from_data_list(first.to_data_list()))
    assert len(out) == first.real.graphs


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("converted", [True, False])
def test_a_model_that_is_not_bound_says_so_once(hiv, converted):
    model = net()
    sg.convert(net())  # PyG's functions dispatch from here on
    if converted:
        sg.convert(model)
    batch = batches_of(hiv, 1)[0]
    with pytest.warns(UserWarning, match=r"Net \(\w+ in it\) calls .*`with sg\.bound\(") as caught:
        called(model, batch)
    assert [w.filename for w in caught] == [__file__]
    for given in (batch, batch.clone()):
        called(model, given)
    other = net()
    with pytest.warns(UserWarning, match="Net"):
        called(other, batch.clone())


# Raised by PyG's inspector on Python 3.14.
@pytest.mark.filterwarnings("ignore:Failing to pass a value to:DeprecationWarning")
@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_plain_pyg(hiv):
    sg.convert(net())
    batch = batches_of(hiv, 1)[0]
    called(net(), Batch.from_data_list(batch.to_data_list()))
    called(net(), batch.to_data_list()[0])
    global_mean_pool(batch.x.double(), batch.batch)  # a direct call: the user may mean it
    static_step(net(), batch)


class Attending(nn.Module):
    """Nodes have a type, so its softmax stays PyG's in a rewritten step, where nothing is bound."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(9, 1)

    def forward(self, data):
        x, batch = data["atom"].x.float(), data["atom"].batch
        scores = softmax(self.score(x), batch, num_nodes=data.num_graphs)
        return global_add_pool(scores * x, batch, data.num_graphs).sum(1)


@pytest.mark.filterwarnings("error:.*batch of fixed shape")
def test_nothing_is_said_of_a_rewritten_step(hiv):
    graphs = []
    for number in range(30):
        graphs.append(HeteroData())
        graphs[-1]["atom"].x = hiv[number].x
        graphs[-1]["atom", "to", "atom"].edge_index = hiv[number].edge_index
    store = sg.GraphStore.from_pyg(graphs)
    plan = sg.plan_buckets(store, batch_size=15)
    runner = made_runner(Attending(), plan, "fused", check_padding=False)
    for batch in sg.StaticLoader(store, plan):
        runner(batch)


def test_a_plain_model_over_a_loader_is_told_of(tmp_path):
    """Nothing is converted in this process: the loader alone makes PyG's layers check."""
    script = """
    import warnings
    import staticgraph as sg
    from torch_geometric.nn import GCNConv
    store = sg.datasets.open("examples/data/esol.npz")
    loader = sg.StaticLoader(store, sg.plan_buckets(store, batch_size=32))
    conv = GCNConv(9, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in loader:
            conv(batch.x.float(), batch.edge_index)
            del batch
    print(len(caught), caught[0].message)
    """
    ran = run_program(["-c", textwrap.dedent(script)], timeout=patience(60))
    assert ran.stdout.startswith("1 GCNConv calls "), ran.stdout + ran.stderr


def test_what_bound_cannot_take_is_refused(hiv):
    batch = batches_of(hiv, 1)[0]
    data = Batch.from_data_list(batch.to_data_list())
    with pytest.raises(TypeError, match=r"takes a StaticBatch, .* not a DataBatch"):
        sg.bound(net(), data)
