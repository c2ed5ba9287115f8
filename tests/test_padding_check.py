"""No model trains on padding in silence: its loss is plain PyG's, or an error names the layer."""

from __future__ import annotations

import copy
import inspect
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.layer_cases import CASES, C
from support.layer_model import model_of
from support.parity import BATCH, CAPACITY, STORE
from support.runners import made_runner
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool

import staticgraph as sg
from staticgraph.models import NAMES, build

PLAN = [CAPACITY]


class Probe(nn.Module):
    """A convolution, a trick over its rows, a mean over each graph, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(C, C)
        self.layer = self.made()
        self.head = nn.Linear(C, 2)

    def made(self):
        return nn.Identity()

    def forward(self, x, edge_index, batch):
        h = self.trick(self.conv(x, edge_index))
        return self.head(global_mean_pool(h, batch))

    def trick(self, h):
        return self.layer(h)


# ---------------------------------------------------------------- served


class OwnNorm(nn.BatchNorm1d):
    """Overrides nothing."""


class OptionsOnly(nn.BatchNorm1d):
    def __init__(self, channels):
        super().__init__(channels, eps=1e-3, momentum=0.3)
        self.extra = 3


class Residual(nn.BatchNorm1d):
    def forward(self, input):
        return input + 0.5 * super().forward(input)


class AnyShape(nn.BatchNorm1d):
    def _check_input_dim(self, input):
        pass


class Twice(Residual):
    def forward(self, input):
        return super().forward(super().forward(input))


def with_norm(kind):
    return type(f"With{kind.__name__}", (Probe,), {"made": lambda self: kind(C)})


class SequenceOfNorms(Probe):
    def made(self):
        return nn.Sequential(Residual(C), nn.ReLU(), OwnNorm(C))


SERVED = [with_norm(kind) for kind in (OwnNorm, OptionsOnly, Residual, AnyShape, Twice)]
SERVED += [SequenceOfNorms]

# ---------------------------------------------------------------- named


class WholeForward(nn.BatchNorm1d):
    def forward(self, input):
        return F.batch_norm(  # here
            input, self.running_mean, self.running_var, self.weight, self.bias, True, 0.1, self.eps
        )


class ByName(nn.BatchNorm1d):
    def forward(self, input):
        return nn.BatchNorm1d.forward(self, input)  # here


class FunctionalNorm(Probe):
    def trick(self, h):
        return F.batch_norm(h, None, None, training=True)  # here


class Mean(Probe):
    def trick(self, h):
        return h - h.mean(0)  # here


class MeanKeptApart(Probe):
    def trick(self, h):
        middle = h.mean(0)  # here
        return h.relu() - middle


class Deviation(Probe):
    def trick(self, h):
        return h / (h.std() + 1)  # here


class InstanceNorm(Probe):
    layer_name = "layer"

    def made(self):
        return nn.InstanceNorm1d(C)

    def trick(self, h):
        return self.layer(h.t()[None])[0].t()  # here


class GroupNorm(Probe):
    layer_name = "layer"

    def made(self):
        return nn.GroupNorm(2, C)

    def trick(self, h):
        return self.layer(h.t()[None])[0].t()  # here


class OverNodes(Probe):
    layer_name = "layer"

    def made(self):
        return nn.Conv1d(C, C, 3, padding=1)

    def trick(self, h):
        return self.layer(h.t()[None])[0].t()  # here


class Softmax(Probe):
    def trick(self, h):
        return h * h.softmax(0)  # here


class Attention(Probe):
    layer_name = "layer"

    def made(self):
        return nn.MultiheadAttention(C, 2, batch_first=True)

    def trick(self, h):
        return self.layer(h[None], h[None], h[None], need_weights=False)[0][0]  # here


class Dots(Probe):
    def trick(self, h):
        return (h @ h.t()).softmax(-1) @ h  # here


class Sum(Probe):
    def trick(self, h):
        return h + h.sum(0)  # here


class Largest(Probe):
    seldom = True  # is padding the largest

    def trick(self, h):
        return h - h.max()  # here


class Sorted(Probe):
    def trick(self, h):
        return h + h.sort(0).values  # here


class Backwards(Probe):
    def trick(self, h):
        return h + h.flip(0).cumsum(0).flip(0)  # here


class Recurrent(Probe):
    layer_name = "layer"

    def made(self):
        return nn.GRU(C, C // 2, batch_first=True, bidirectional=True)

    def trick(self, h):
        return self.layer(h[None])[0][0]  # here


class Norm(Probe):
    def trick(self, h):
        return h / (1 + h).norm()  # here


class LayerNormOverAll(Probe):
    def trick(self, h):
        return F.layer_norm(h, h.shape)  # here


class CountedNodes(Probe):
    """Depends on how many padding rows there are, and on nothing that stands in them."""

    layer_name = ""

    def trick(self, h):
        return h / h.size(0)


class Positions(Probe):
    layer_name = ""

    def trick(self, h):
        return h + torch.linspace(0, 1, h.size(0), dtype=h.dtype)[:, None]


class Cumulated(Probe):
    """Padding rows come after the real ones: nothing is wrong."""

    def trick(self, h):
        return h + h.cumsum(0)


class Permuted(Probe):
    """Rows in another order and back."""

    def trick(self, h):
        return h.flip(0).relu().flip(0)


NAMED = [
    *(with_norm(kind) for kind in (WholeForward, ByName)),
    *(FunctionalNorm, Mean, MeanKeptApart, Deviation, InstanceNorm, GroupNorm, OverNodes),
    *(Softmax, Attention, Dots, Sum, Largest, Sorted, Backwards, Recurrent, Norm),
    *(LayerNormOverAll, CountedNodes, Positions),
]
RIGHT = [Probe, Cumulated, Permuted]


def loss(out, batch):
    return (out - batch.y).square()


def runner_of(model, **options):
    options.setdefault("mode", "eager")
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    return made_runner(model, PLAN, loss=loss, optimizer=sgd, **options)


def made(kind):
    torch.manual_seed(0)
    model = kind().double()
    nn.init.normal_(model.conv.bias)  # a bias of zeros hides much, until it has learned
    return model


def plain_loss(model):
    data = Batch.from_data_list(BATCH.to_data_list())
    return float(loss(model(data.x, data.edge_index, data.batch), data).mean().detach())


@pytest.mark.parametrize("kind", [*SERVED, *RIGHT], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("known", [True, False], ids=["eager", "as compiled"])
def test_what_is_served_gives_plain_pygs_loss_and_statistics(kind, known):
    stock, model = made(kind), made(kind)
    batch = BATCH.replace()
    if not known:
        batch.real = None
    found = runner_of(model, check_padding=known).step(batch)
    assert float(found) == pytest.approx(plain_loss(stock), abs=1e-10)
    for (name, ours), theirs in zip(model.named_buffers(), stock.buffers(), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10), name


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.__name__)
def test_what_padding_reaches_is_an_error_that_names_it(kind):
    stock = made(kind)
    unchecked = runner_of(copy.deepcopy(stock), check_padding=False).step(BATCH)
    wrong = abs(float(unchecked) - plain_loss(copy.deepcopy(stock))) > 1e-6
    assert wrong or getattr(kind, "seldom", False)
    with pytest.raises(sg.PaddingLeaks) as raised:
        runner_of(stock).step(BATCH)
    said, error = str(raised.value), raised.value
    assert "check_padding=False" in said
    culprit = type(stock.layer) if type(stock.layer) is not nn.Identity else kind
    if getattr(kind, "layer_name", None) == "":
        return
    expected = [kind, *type(stock.layer).__mro__]
    marked = {
        f"{inspect.getsourcefile(k)}:{inspect.getsourcelines(k)[1] + number}"
        for k in expected
        if k.__module__ == __name__ and k.__qualname__ == k.__name__ and k in globals().values()
        for number, line in enumerate(inspect.getsourcelines(k)[0])
        if "# here" in line
    }
    assert error.where in marked, said
    assert error.module in ("layer", ""), (said, culprit)
    if getattr(kind, "layer_name", None):
        assert error.module == kind.layer_name, said


# ---------------------------------------------------------------- not flagged


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_supported_layer_is_flagged(case):
    for mode in ("eager", "default"):
        check = runner_of(model_of(case), mode=mode)._padding
        check.of(BATCH, "step")
        assert not check.wanted("step")


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_no_model_of_the_zoo_is_flagged(hiv, name, dropout):
    torch.manual_seed(0)
    model = build(name, hiv, hidden=16, layers=2, dropout=dropout)
    runner = sg.StaticGraphRunner(
        model,
        sg.plan_buckets(hiv, batch_size=16),
        mode="eager",
        loss=lambda out, batch: F.binary_cross_entropy_with_logits(
            out, batch.y.to(out.dtype), reduction="none"
        ),
        optimizer=torch.optim.Adam(model.parameters()),
    )
    runner.warmup(hiv)
    assert not runner._padding.wanted("step")


def test_random_numbers_are_drawn_alike_and_a_leak_beside_them_is_found():
    class Dropped(Mean):
        def trick(self, h):
            return super().trick(F.dropout(h, 0.5, self.training))

    class Only(Probe):
        def trick(self, h):
            return F.dropout(h, 0.5, self.training) + torch.rand_like(h)

    runner_of(made(Only)).step(BATCH)
    with pytest.raises(sg.PaddingLeaks):
        runner_of(made(Dropped)).step(BATCH)


def test_whole_floats_and_integers_stay_categories():
    """Garbage outside a table's range would be an error of its own, on a device a fatal one."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, C)
            self.head = nn.Linear(C, 2)

        def forward(self, x, edge_type, node_type, edge_index, batch):
            h = self.table(node_type) + self.table(node_type.double().long())
            return self.head(global_mean_pool(h, batch)).to(x.dtype)

    model = made_any(Table)
    check = runner_of(model)._padding
    check.of(BATCH, "step")
    assert not check.wanted("step")


def made_any(kind):
    torch.manual_seed(0)
    return kind().double()


# ---------------------------------------------------------------- changes nothing, once


class Counts(Probe):
    """Touches whatever a forward may: attributes, buffers bound anew, random numbers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(C)
        self.calls = 0
        self.register_buffer("kept", torch.zeros(()))

    def trick(self, h):
        self.calls += 1
        self.seen = h
        self.kept = self.kept + 1
        drawn = random.random() + np.random.rand() + torch.rand(())  # noqa: NPY002
        return F.dropout(self.norm(h), 0.2, self.training) * drawn


def state_of(model, optimizer):
    return copy.deepcopy(
        (
            model.state_dict(),
            [p.grad for p in model.parameters()],
            optimizer.state_dict(),
            [m.training for m in model.modules()],
            model.calls,
            hasattr(model, "seen"),
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
        )
    )


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def test_the_check_changes_nothing():
    model = made(Counts)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    runner = sg.StaticGraphRunner(model, PLAN, mode="eager", loss=loss, optimizer=optimizer)
    model.train()
    model.norm.eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = state_of(model, optimizer)
    kept = model.kept
    runner.warmup(BATCH)
    assert not runner._padding.wanted("step")
    assert same(state_of(model, optimizer), before)
    assert model.kept is kept


def test_a_checked_run_is_the_unchecked_run():
    trajectories = []
    for checked in (True, False):
        model = made(Counts)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        runner = sg.StaticGraphRunner(
            sg.Subject(model, loss=loss, optimizer=optimizer, check_padding=checked),
            PLAN,
            mode="eager",
        )
        random.seed(0), np.random.seed(0), torch.manual_seed(1)  # noqa: NPY002
        trajectories.append([float(runner.step(BATCH)) for _ in range(4)])
        assert model.calls == 4
    assert trajectories[0] == trajectories[1]


@pytest.mark.parametrize("known", [True, False])
def test_it_runs_once_and_not_over_padding_alone(known):
    model = made(Counts)
    runner = runner_of(model)
    blank = sg.StaticBatch.of(STORE, [], CAPACITY)
    if not known:
        blank.real = None
    runner._computation.known(blank)  # which results are rows is found by a run of its own
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    runner.step(blank)
    assert len(calls) == 1
    runner.step(BATCH)
    checked = len(calls)
    assert checked > 3
    runner.step(BATCH)
    runner.eval_step(BATCH)
    assert len(calls) == checked + 2


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_what_the_warm_up_checked_is_not_checked_again(mode):
    """An evaluation is one, whether the warm-up or a batch asks for it, and whatever mode the model
    was left in; calling the model while it trains is something else."""
    model = getattr(made(Counts), mode)()
    runner = sg.StaticGraphRunner(model, PLAN, mode="eager").warmup(STORE, progress=False)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(model.training))
    runner.eval_step(BATCH)
    runner.predict(STORE)
    assert len(calls) == 2
    model.train()
    runner(BATCH)
    assert len(calls) > 3
    assert calls[2]
    checked = len(calls)
    runner(BATCH)
    runner.eval_step(BATCH)
    assert len(calls) == checked + 2


def test_an_error_comes_again_and_leaves_the_model_usable():
    model = made(Mean)
    runner = runner_of(model)
    for _ in range(2):
        with pytest.raises(sg.PaddingLeaks):
            runner.step(BATCH)
    runner_of(model, check_padding=False).step(BATCH)


def test_a_model_without_a_loss_is_checked_at_its_first_forward():
    for call in ("__call__", "eval_step", "predict"):
        runner = sg.StaticGraphRunner(made(Mean).eval(), PLAN, mode="eager")
        with pytest.raises(sg.PaddingLeaks):
            getattr(runner, call)(STORE if call == "predict" else BATCH)


def test_an_evaluation_first_does_not_spare_the_step():
    """In evaluation BatchNorm takes its own statistics: only the step shows what padding does."""
    model = made(with_norm(ByName))
    runner = runner_of(model)
    runner.eval_step(BATCH)
    with pytest.raises(sg.PaddingLeaks):
        runner.step(BATCH)


def test_a_loss_that_mixes_rows_is_found():
    def centred(out, batch):
        return (out - batch.y - (out - batch.y).mean(0)).square()  # here

    model = made(Probe)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    runner = sg.StaticGraphRunner(model, PLAN, mode="eager", loss=centred, optimizer=sgd)
    said = r"the loss changes by .*no layer does it.*# here"
    with pytest.raises(sg.PaddingLeaks, match=said) as raised:
        runner.step(BATCH)
    assert raised.value.module is None


def test_a_gradient_that_padding_breaks_is_found():
    """The loss is right, and the first update would make every weight NaN."""

    class Divides(Probe):
        def forward(self, x, edge_index, batch):
            h = self.conv(x, edge_index)
            out = global_add_pool(h, batch).square().sum(1).sqrt()
            inside = global_add_pool(x[:, 0].square()[:, None], batch).sqrt()
            return out[:, None] * self.head.weight.sum() + (inside * self.head.bias[:1]).sqrt()

    model = made(Divides)
    nn.init.ones_(model.head.bias)
    assert plain_loss(copy.deepcopy(model)) > 0
    with pytest.raises(sg.PaddingLeaks, match=r"the gradient of .*not finite"):
        runner_of(model).step(BATCH)


def test_missing_labels_leave_the_outputs_to_compare():
    graphs = STORE_WITH_MISSING
    batch = sg.StaticBatch.of(graphs, range(len(graphs)), CAPACITY)
    runner_of(made(Probe)).step(batch)
    with pytest.raises(sg.PaddingLeaks, match="number of padding rows"):
        runner_of(made(CountedNodes)).step(batch)


def with_missing():
    graphs = BATCH.clone().to_data_list()
    graphs[1].y[0, 0] = float("nan")
    return sg.GraphStore.from_pyg(graphs)


STORE_WITH_MISSING = with_missing()


# ---------------------------------------------------------------- warming up


@pytest.mark.parametrize("example", [None, STORE, BATCH], ids=["made up", "store", "batch"])
def test_warmup_checks_before_it_compiles(example, monkeypatch):
    plan = sg.BucketPlan.of(PLAN)
    runner = runner_of(made(with_norm(ByName)), mode="default")
    if example is None:
        runner._schema = STORE.schema
    monkeypatch.setattr(runner._warming, "prepare", lambda *_: pytest.fail("compiled before"))
    with pytest.raises(sg.PaddingLeaks, match=r"'layer' \(StaticByName\)"):
        runner.warmup(example, progress=False)
    assert plan


def test_eager_warmup_without_an_example_waits_for_the_first_batch():
    runner = runner_of(made(Mean)).warmup()
    with pytest.raises(sg.PaddingLeaks):
        runner.step(BATCH)


def test_a_model_that_does_not_run_says_so_itself():
    class Broken(Probe):
        def trick(self, h):
            raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        runner_of(made(Broken)).step(BATCH)
