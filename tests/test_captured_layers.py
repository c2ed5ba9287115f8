"""Models that are no single graph in mode ``fused``: their layers are fused by themselves, and all
equals eager."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import assert_same_gradients
from support.rewritten import CAPACITY, IDS, garbage, in_plain_pyg, seeded, sines
from support.runners import sgd_runner
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GATv2Conv, GINEConv, TopKPooling, global_add_pool

import staticgraph as sg

WIDTH = 8


class Branching(nn.Module):
    """Reads a number off the data between its layers."""

    LOOPS = True

    def __init__(self):
        super().__init__()
        self.atoms, self.bonds = nn.Linear(9, WIDTH), nn.Linear(3, WIDTH)
        mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
        attention = GATv2Conv(WIDTH, WIDTH // 2, heads=2, edge_dim=WIDTH, add_self_loops=self.LOOPS)
        self.convs = nn.ModuleList([GINEConv(mlp), self.block(attention)])
        self.head = nn.Linear(WIDTH, 1)

    def block(self, conv):
        return conv

    def call(self, conv, *args):
        return conv(*args)

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        h = self.atoms(x.to(self.head.weight))
        edge_attr = self.bonds(edge_attr.to(h))
        for conv in self.convs:
            h = h + self.call(conv, h, edge_index, edge_attr).tanh()
            if float(h.detach().abs().max()) > 1e9:
                h = h / 10
        return self.head(global_add_pool(h, batch, batch_size))


def trained(model, store, mode):
    model = copy.deepcopy(model)
    plan = sg.plan_buckets(store, batch_size=8)
    loss = nn.MSELoss(reduction="none")

    def each(out, batch):
        assert float(out.detach().sum()) < 1e9  # reads a number, too
        return loss(out, batch.y.to(out))[:, 0]

    return sgd_runner(model, plan, mode, loss=each, rate=1e-6, check_padding=False)


def few(esol):
    return sg.GraphStore.from_pyg(esol[:64])


def assert_as_eager(build, store, layers, predicts=False):
    torch.manual_seed(0)
    model, found = build().double(), {}
    for mode in ("eager", "fused"):
        runner = trained(model, store, mode)
        losses = [float(runner.step(batch)) for batch in runner.loader(store)]
        outs = runner.predict(store[:9]) if predicts else ()
        found[mode] = [torch.tensor(losses), outs, *runner.model.state_dict().values()]
    torch.testing.assert_close(found["fused"], found["eager"], rtol=1e-9, atol=1e-10)
    assert runner.steps.compiled.apart["step"].paths == layers
    return runner


def test_its_layers_are_fused_and_the_line_is_named(esol):
    with pytest.warns(UserWarning, match=r"fused by themselves \(convs.0, convs.1\)"):
        runner = assert_as_eager(Branching, few(esol), ["convs.0", "convs.1"], predicts=True)
    report = runner.report()
    note = next(one for one in report.fallbacks if one.startswith("step: "))
    assert "test_captured_layers.py" in note
    assert "so it runs in eager" in note
    captured = runner.steps.compiled.apart["step"].functions.values()
    assert all({place.rewrite for place in one.done} & {"neighbours"} for one in captured)
    assert report.buckets[0].compiles == 2 * 2  # training and evaluation


class Whole(Branching):
    """Reads nothing itself but its own sizes."""

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.atoms(x.to(self.head.weight))
        for conv in self.convs:
            h = h + conv(h, edge_index, self.bonds(edge_attr.to(h))).tanh()
        return self.head(global_add_pool(h, batch, int(batch.max()) + 1))


class Counting(Whole):
    """Changes what it was captured with, in every step."""

    steps = 0

    def forward(self, x, edge_index, edge_attr, batch):
        self.steps += 1
        return super().forward(x, edge_index, edge_attr, batch) * self.steps


@pytest.mark.filterwarnings("ignore:.*fused by themselves")
def test_where_the_loss_alone_reads_the_model_is_captured_whole_while_it_stays_the_same(esol):
    assert_as_eager(Whole, few(esol), ["the model"])
    with pytest.warns(UserWarning, match="the model is no longer fused"):
        assert_as_eager(Counting, few(esol), ["convs.0", "convs.1"])


class Wrapped(nn.Module):
    """A block that reads a number as well."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, h, edge_index, edge_attr):
        return self.conv(h, edge_index, edge_attr) * (2 if float(h.detach().sum()) > 1e9 else 1)


class Nested(Branching):
    def block(self, conv):
        return Wrapped(conv)


@pytest.mark.filterwarnings("ignore:.*fused by themselves")
def test_of_a_layer_that_cannot_be_captured_those_inside_are(esol):
    assert_as_eager(Nested, few(esol), ["convs.0", "convs.1.conv"])


class Checkpointed(Branching):
    def call(self, conv, *args):
        if conv is self.convs[0]:
            return conv(*args)
        return checkpoint(conv, *args, use_reentrant=False)


@pytest.mark.filterwarnings("ignore:.*fused by themselves")
def test_a_checkpointed_layer_stays_in_eager_which_its_backward_runs_again(esol):
    assert_as_eager(Checkpointed, few(esol), ["convs.0"])


class Chosen(nn.Module):
    """A layer over as many edges as the data say, another number in every batch."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, h, edge_index, edge_attr):
        kept = edge_attr[:, 0] > edge_attr[:, 0].mean()
        return self.conv(h, edge_index[:, kept], edge_attr[kept])


class OfChosen(Branching):
    LOOPS = False

    def block(self, conv):
        return Chosen(conv)


class Pooling(Branching):
    """A layer that returns rows of which others must know."""

    def __init__(self):
        super().__init__()
        self.pool = TopKPooling(WIDTH, 0.5)

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        h = self.atoms(x.to(self.head.weight))
        h = self.convs[0](h, edge_index, self.bonds(edge_attr.to(h))).tanh()
        if float(h.detach().abs().max()) > 1e9:
            h = h / 10
        h, _, _, batch, *_ = self.pool(h, edge_index, None, batch)
        return self.head(global_add_pool(h, batch, batch_size))


@pytest.mark.filterwarnings("ignore:.*fused by themselves")
@pytest.mark.parametrize("model", [OfChosen, Pooling])
def test_a_layer_whose_shapes_follow_the_data_stays_in_eager(esol, model):
    assert_as_eager(model, few(esol), ["convs.0"])


class Plain(Branching):
    """Nothing in it but what torch has."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList()

    def forward(self, x, batch, batch_size):
        h = self.atoms(x.to(self.head.weight))
        return self.head(global_add_pool(h if float(h.sum()) > 0 else -h, batch, batch_size))


def test_without_a_layer_to_fuse_the_reason_is_an_error(esol):
    runner = trained(Plain(), few(esol), "fused")
    with pytest.raises(sg.NotStatic, match="follows from data"):
        runner.step(next(iter(runner.loader(few(esol)))))


@pytest.mark.filterwarnings("ignore:.*fused by themselves")
def test_nothing_is_captured_after_the_warm_up(esol):
    store = few(esol)
    runner = trained(Branching(), store, "fused")
    runner.warmup(store, phases=["step"])
    layers = runner.steps.compiled.apart["step"]
    before = dict(layers.functions)
    for batch in runner.loader(store):
        runner.step(batch)
    assert layers.functions == before
    assert len(before) == 2


def test_padding_is_inert_in_a_captured_layer(esol):
    """Over garbage in the padding, as plain PyG without padding."""
    model = seeded(Branching)
    stock = copy.deepcopy(model)
    expected = in_plain_pyg(stock, esol)
    sines(expected).backward()
    runner = sg.StaticGraphRunner(model, [CAPACITY], mode="fused", check_padding=False)
    batch = garbage(sg.StaticBatch.of(esol, IDS, CAPACITY), esol)
    with pytest.warns(UserWarning, match="fused by themselves"):
        out = runner(batch)[batch.graph_mask]
    sines(out).backward()
    assert runner.steps.compiled.apart["forward"].paths == ["convs.0", "convs.1"]
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    assert_same_gradients(model, stock, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(list(model.buffers()), list(stock.buffers()))


class Scaled(nn.Module):
    """Tells numbers apart that are equal."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, h, edge_index, edge_attr, scale):
        return self.conv(h, edge_index, edge_attr) * scale + (type(scale) is bool)


class ByTurns(Branching):
    def block(self, conv):
        self.turn = 0
        return Scaled(conv)

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        h, scale = self.atoms(x.to(self.head.weight)), (1, True)[self.turn % 2]
        self.turn += 1
        h = self.convs[1](h, edge_index, self.bonds(edge_attr.to(h)), scale)
        if float(h.detach().abs().max()) > 1e9:
            h = h / 10
        return self.head(global_add_pool(h, batch, batch_size))


@pytest.mark.filterwarnings("ignore:.*fused by themselves")
def test_equal_constants_of_two_types_are_two_forms(esol):
    runner = assert_as_eager(ByTurns, few(esol), ["convs.1"])
    forms = [form.arguments[-1][1:3] for _, form in runner.steps.compiled.apart["step"].functions]
    assert forms == [(1, int), (True, bool)] or forms == [(True, bool), (1, int)]


@pytest.mark.filterwarnings("ignore:.*fused by themselves")
def test_an_added_bucket_has_layers_of_its_own(esol):
    plan = sg.plan_buckets(few(esol), batch_size=8)
    padder = sg.Padder(plan, overflow="grow")
    model = seeded(Branching)
    runner = sg.StaticGraphRunner(model, padder, mode="fused", check_padding=False).warmup(
        few(esol), phases=["forward"]
    )
    functions = runner.steps.compiled.apart["forward"].functions
    before = set(functions)
    runner(esol[:16])
    after = runner.steps.compiled.apart["forward"].functions
    assert before
    assert {form.bucket for _, form in after} > {form.bucket for _, form in before}
    assert before <= set(after)
