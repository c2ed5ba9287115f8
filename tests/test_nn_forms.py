"""Static forms: what they refuse, what they keep, and what the table of layers cannot show."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from support.alike import same, sgd, squared
from support.parity import (
    BATCH,
    CAPACITY,
    STORE,
    call,
    differences,
    plain_step,
    poisoned,
    static_step,
    unknown_counts,
)
from support.ranks import on_ranks
from support.runners import made_runner
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.utils import dropout_edge, subgraph, to_dense_batch

import staticgraph as sg
from staticgraph.nn import context_of
from staticgraph.nn.context.bound_batch import Restored


def inside(model, call, batch=BATCH):
    """The result of ``call(model, batch)``, called as a runner would."""
    with Restored():
        context_of(model).enter(batch)
        return call(model, batch)


# ---------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: pyg.ASAPooling(8), "ASAPooling"),
        (lambda: type("Own", (pyg.ASAPooling,), {})(8), "ASAPooling"),
        (lambda: pyg.EdgePooling(8), "EdgePooling"),
        (lambda: pyg.GraphUNet(8, 8, 8, 2), "GraphUNet"),
        (lambda: pyg.WLConv(), "WLConv"),
    ],
)
def test_a_layer_without_a_static_form_is_refused_by_name(build, name):
    model = nn.Sequential(build()).double()
    with pytest.raises(sg.NotStatic, match=f"^{name} has no static form, since .*: "):
        inside(model, lambda m, d: m[0](d.x, d.edge_index))
    assert list(model.state_dict()) == list(nn.Sequential(build()).state_dict())


def test_a_function_without_a_static_form_is_refused_by_name():
    model = nn.Identity()
    with pytest.raises(sg.NotStatic, match=r"^subgraph has no static form"):
        inside(model, lambda m, d: subgraph(d.node_mask, d.edge_index))
    index = torch.tensor([[0, 1], [1, 0]])
    assert subgraph(torch.tensor([0, 1]), index)[0].shape == (2, 2)  # unchanged outside a step


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m, d: pyg.SAGEConv(8, 8, aggr="lstm").double()(d.x, d.edge_index), "fixed width"),
        (lambda m, d: m.pool(d.x, d.edge_index), "pass batch=batch"),
        (lambda m, d: pyg.global_add_pool(d.x[:7], d.batch[:7]), "pass size="),
        (lambda m, d: m.norm(d.x[:7]), "which of them are padding is unknown"),
    ],
)
def test_what_only_data_could_tell_is_refused(call, says):
    model = nn.ModuleDict({"pool": pyg.TopKPooling(8), "norm": nn.BatchNorm1d(8)}).double()
    with pytest.raises(sg.NotStatic, match=says):
        inside(model, call)


# ---------------------------------------------------------------- what is kept


def test_masks_and_sizes_are_of_the_rows_that_layers_make():
    """Edges with added or removed self-loops get their own row counts, with the right masks."""
    context = context_of(nn.Identity())
    with Restored():
        context.enter(BATCH)
        from torch_geometric.utils import add_remaining_self_loops, remove_self_loops

        with_loops, _ = add_remaining_self_loops(BATCH.edge_index)
        without, _ = remove_self_loops(BATCH.edge_index)
        again, _ = remove_self_loops(BATCH.edge_index)
        assert context.num_nodes_for(with_loops) == BATCH.num_nodes
        real = BATCH.edge_mask & (BATCH.edge_index[0] != BATCH.edge_index[1])
        assert context.mask_of(without[0]).sum() == real.sum()
        assert context.mask_of(with_loops[0]).sum() == real.sum() + BATCH.node_mask.sum()
    assert without.shape == again.shape
    assert without.shape[1] > BATCH.num_edges  # a row count that nothing else in the batch has


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.9, 1, 4])
def test_pooling_keeps_the_nodes_and_edges_that_pyg_keeps(ratio):
    """Node for node and edge for edge, in PyG's order, followed by padding."""
    pool = pyg.TopKPooling(8, ratio=ratio).double()
    data = Batch.from_data_list(BATCH.to_data_list())
    x, edge_index, edge_attr, batch, perm, score = pool(
        data.x, data.edge_index, data.edge_attr, data.batch
    )
    model = nn.Sequential(pool)
    found = inside(
        model,
        lambda m, d: m[0](d.x, d.edge_index, d.edge_attr, d.batch),
        unknown_counts(poisoned(BATCH, 1000.0)),
    )
    nodes, edges = len(perm), edge_index.shape[1]
    for mine, theirs in zip(found, (x, edge_index, edge_attr, batch, perm, score), strict=True):
        cut = mine[:, :edges] if theirs is edge_index else mine[: len(theirs)]
        assert torch.equal(cut, theirs)
    assert (found[1][:, edges:] == len(found[0]) - 1).all()
    assert (found[3][nodes:] >= BATCH.real.graphs).all()
    assert not found[0][nodes:].any()


def test_dropped_edges_reach_nothing_and_keep_their_rows():

    def call(model, d):
        edges, mask = dropout_edge(d.edge_index, p=0.5)
        return edges, mask, d.edge_attr[mask]

    edges, mask, attributes = inside(nn.Identity(), call)
    assert edges.shape == BATCH.edge_index.shape
    assert torch.equal(attributes, BATCH.edge_attr)
    kept = torch.as_tensor(mask).as_subclass(torch.Tensor)
    assert torch.equal(edges[:, kept], BATCH.edge_index[:, kept])
    assert (edges[:, ~kept] == BATCH.num_nodes - 1).all()
    assert 0.3 < kept.float().mean() < 0.7


# ---------------------------------------------------------------- padding cannot hurt


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GATv2Conv(8, 8, edge_dim=4)
        self.norm = pyg.BatchNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.norm(self.conv(x, edge_index, edge_attr))
        return self.head(pyg.global_add_pool(h, batch))


def step_of(batch, **options):
    torch.manual_seed(0)
    model = Net().double()
    optimizer = sgd(model, 0.1)
    runner = made_runner(model, [CAPACITY], loss=squared, optimizer=optimizer, **options)
    value = runner.step(batch)
    return [value, *model.state_dict().values()], runner.eval_step(batch).out


@pytest.mark.parametrize("garbage", [1.0, 1000.0, 1e30, float("nan"), float("inf")])
def test_sanitize_keeps_any_garbage_out(garbage):
    """Loss, weights after a step and running statistics; without sanitize only up to 1000."""
    expected, out = step_of(BATCH)
    batch = poisoned(BATCH, 1.0)
    floats = {f.name: batch[f.name] for f in batch.layout.schema if "float" in f.dtype}
    masks = {name: batch.mask_of(v).view(-1, *(1,) * (v.dim() - 1)) for name, v in floats.items()}
    filled = {
        name: torch.where(masks[name], value, value * garbage) for name, value in floats.items()
    }
    found, found_out = step_of(batch.replace(**filled), sanitize=True)
    assert same([*found, found_out], [*expected, out])
    if garbage in (1.0, 1000.0):
        found, _ = step_of(batch.replace(**filled))
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.allclose(
                mine, theirs, rtol=0, atol=1e-9 * max(1, float(theirs.abs().max()))
            )


# ---------------------------------------------------------------- several ranks


def rank_step() -> tuple:
    rank = torch.distributed.get_rank()
    ids = ([0, 1, 2], [3, 4])[rank]
    batch = poisoned(sg.StaticBatch.of(STORE, ids, CAPACITY), 1000.0, seed=rank)
    norm = sg.convert(nn.SyncBatchNorm(8).double())
    x = batch.x.clone().requires_grad_()
    out = inside(norm, lambda m, d: m(x), batch)
    (out * out.detach().sin()).sum().backward()
    real = batch.real.nodes
    return out[:real], x.grad[:real], norm.state_dict()


def test_synchronised_batch_norm_counts_real_rows_of_all_ranks():
    """Two ranks of three and two graphs against one BatchNorm over all five."""
    parts = on_ranks(2, rank_step)
    x = BATCH.x[: BATCH.real.nodes].clone().requires_grad_()
    norm = nn.BatchNorm1d(8).double()
    out = norm(x)
    (out * out.detach().sin()).sum().backward()
    assert torch.allclose(torch.cat([p[0] for p in parts]), out, rtol=0, atol=1e-12)
    assert torch.allclose(torch.cat([p[1] for p in parts]), x.grad, rtol=0, atol=1e-12)
    for part in parts:
        for key, value in norm.state_dict().items():
            assert torch.allclose(part[2][key], value, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- models that use the forms


class Images(nn.Module):
    """Nodes as images of two channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(2), nn.Linear(8, 2)

    def forward(self, d):
        h = self.norm(d.x.view(-1, 2, 2, 2)).flatten(1)
        return self.head(pyg.global_add_pool(h.sin(), d.batch))


class Memory(nn.Module):
    """The outputs and the auxiliary loss of a memory layer; the loss is a mean over graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pyg.MemPooling(8, 2, heads=2, num_clusters=3)

    def forward(self, d):
        h, clusters = self.pool(d.x, d.batch)
        return h.mean(1) + pyg.MemPooling.kl_loss(clusters)


class Largest(nn.Module):
    """The maximum over a dense block that is filled with negative infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, d):
        h, _ = to_dense_batch(d.x, d.batch, fill_value=-torch.inf)
        return self.head(h.amax(1))


@pytest.mark.parametrize("kind", [Images, Memory, Largest])
def test_numbers_and_gradients_are_those_without_padding(kind):
    model = kind().double()
    stock = vars(pyg.MemPooling)["kl_loss"]
    expected = plain_step(model, call, BATCH)
    dirty = poisoned(BATCH, 1000.0)
    for batch in (dirty, unknown_counts(dirty)):
        found, _ = static_step(model, call, batch)
        assert not differences(expected, found)
    assert vars(pyg.MemPooling)["kl_loss"] is stock


# ---------------------------------------------------------------- refused, too


def test_an_unknown_word_converts_nothing():
    model = nn.Sequential(pyg.TopKPooling(4))
    for option, word, said in (
        ("kernels", "off", "True or False"),
        ("attention", "fast", "one of"),
    ):
        with pytest.raises(ValueError, match=f"{option}='{word}'; choose {said}"):
            sg.convert(model, **{option: word})
    assert type(model[0]) is pyg.TopKPooling
