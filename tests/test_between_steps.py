"""What a loop does to its model between steps: a hook, a new layer, a new block.

Compiled steps refuse what they would leave out; eager steps follow, over real rows only.
"""

from __future__ import annotations

import pytest
import torch
from support.alike import real_ids, squared
from support.places import mode_of
from support.plain_epochs import (
    GRAPHS,
    PLAN,
    STORE,
    D,
    Net,
    equal,
    make_net,
    plain_step,
    sgd,
)
from support.runners import made_runner
from torch import nn
from torch.nn.utils import prune
from torch_geometric.data import Batch
from torch_geometric.nn import BatchNorm

import staticgraph as sg

FOURS = sg.plan_buckets(STORE, batch_size=4, num_buckets=1)


class Growing(Net):
    """Norms that a loop adds run after the convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.ModuleList()

    def forward(self, x, edge_index, batch, num_graphs):
        h = self.conv(x, edge_index)
        for norm in self.more:
            h = norm(h)
        return self.head(torch.zeros(num_graphs, 8, dtype=D).index_add(0, batch, h))


def grown(cls, change, mode="eager", optimizer_of=sgd):
    """Train a runner and plain PyG with the same change after each step, and compare them."""
    torch.manual_seed(0)
    ours, theirs = cls().to(D), cls().to(D)
    theirs.load_state_dict(ours.state_dict())
    first, second = optimizer_of(ours), optimizer_of(theirs)
    runner = sg.StaticGraphRunner(ours, PLAN, mode, loss=squared, optimizer=first)
    for number, batch in enumerate(runner.loader(STORE, indices=range(24))):
        ids = range(8 * number, 8 * number + 8)
        equal([runner.step(batch)], [plain_step(theirs, second, ids)])
        for model, optimizer in ((ours, first), (theirs, second)):
            torch.manual_seed(number)
            change(model, optimizer, number)
    equal(ours.state_dict().values(), theirs.state_dict().values())
    return runner, ours, theirs


def test_a_norm_that_is_added_runs_over_real_rows():
    def change(model, optimizer, number):
        norm = (nn.BatchNorm1d(8), BatchNorm(8), nn.BatchNorm1d(8))[number].to(D)
        model.more.append(norm)
        optimizer.add_param_group({"params": list(norm.parameters())})

    runner, _, theirs = grown(Growing, change)
    batch = Batch.from_data_list(GRAPHS)
    out = theirs.eval()(batch.x, batch.edge_index, batch.batch, len(GRAPHS))
    equal([runner.predict(GRAPHS)], [out])


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_settings_of_the_optimizer_are_followed(mode):
    """As ``OneCycleLR`` cycles the momentum; recorded steps refuse it."""

    def change(model, optimizer, number):
        group = optimizer.param_groups[0]
        group["momentum"], group["weight_decay"] = 0.8 - 0.2 * number, 0.1 * (number + 1)

    def with_momentum(model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    grown(Net, change, mode, with_momentum)


def test_a_layer_that_padding_reaches_is_found_when_it_comes():
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    def change(model, optimizer, number):
        model.more.append(Centred())

    with pytest.raises(sg.errors.PaddingLeaks, match=r"more\.0.*Centred"):
        grown(Growing, change)


def begun(model, plan=PLAN):
    """A fused runner after its first step, and the batches that follow."""
    runner = sg.StaticGraphRunner(model, plan, "fused", loss=squared, optimizer=sgd(model))
    batches = iter(runner.loader(STORE))
    runner.step(next(batches))
    return runner, batches


HOOKS = {
    "a layer's": lambda m: m.head.register_forward_hook(lambda layer, given, out: out * 2),
    "before a layer": lambda m: m.head.register_forward_pre_hook(lambda layer, given: None),
    "the model's": lambda m: m.register_forward_hook(lambda layer, given, out: out * 2),
    "backward": lambda m: m.head.register_full_backward_hook(lambda layer, given, out: None),
    "messages": lambda m: m.conv.register_message_forward_hook(lambda layer, given, out: out * 2),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_comes_after_the_first_step_is_not_left_out(name):
    model = make_net()
    runner, batches = begun(model)
    handle = HOOKS[name](model)
    with pytest.raises(sg.NotStatic):
        runner.step(next(batches))
    handle.remove()
    runner.step(next(batches))


@pytest.mark.parametrize("name", ["a layer's", "messages"])
def test_an_eager_step_follows_a_hook(name):
    grown(Net, lambda model, optimizer, number: HOOKS[name](model))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["a layer's", "the model's", "before a layer"])
def test_a_hook_that_goes_after_the_first_step_is_not_heard_on(name):
    model = make_net()
    handle = HOOKS[name](model)
    runner, batches = begun(model)
    HOOKS[name](make_net())  # a hook of another model
    runner.step(next(batches))
    handle.remove()
    with pytest.raises(sg.NotStatic, match="came or went since its steps were compiled"):
        runner.step(next(batches))


class Mixed(Net):
    """A layer of each kind that people change while a model trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.act = nn.BatchNorm1d(8), nn.Dropout(0.0), nn.ReLU()
        self.more, self.scale, self.stage = nn.ModuleList(), 1.0, 0
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x, edge_index, batch, num_graphs):
        h = self.act(self.norm(self.conv(x, edge_index)) + self.shift) * self.scale
        for layer in self.more:
            h = layer(h)
        if self.stage:
            h = -h
        h = self.drop(h)
        return self.head(torch.zeros(num_graphs, 8, dtype=D).index_add(0, batch, h))


def new(layer):
    torch.manual_seed(3)
    return layer().to(D)


def halved(model):
    return {n: v / 2 if v.is_floating_point() else v for n, v in model.state_dict().items()}


def add_group(model, optimizer):
    layer = new(lambda: nn.Linear(8, 8))
    model.more.append(layer)
    optimizer.add_param_group({"params": layer.parameters(), "lr": 2**-7, "fused": True})


def exchange(model, optimizer):
    model.head = new(lambda: nn.Linear(8, 2))
    optimizer.param_groups[0]["params"] = list(model.parameters())
    optimizer.state.clear()


@torch.no_grad()
def rewrite(model, optimizer):
    for parameter in model.parameters():
        parameter.mul_(0.5)


def parametrize(model, optimizer):
    nn.utils.parametrizations.weight_norm(model.head)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    optimizer.state.clear()


CHANGES = {
    "layer exchanged": exchange,
    "state loaded": lambda m, o: m.load_state_dict(halved(m)),
    "state assigned": lambda m, o: m.load_state_dict(halved(m), assign=True),
    "optimizer state loaded": lambda m, o: o.load_state_dict(o.state_dict()),
    "group added": add_group,
    "parametrized": parametrize,
    "pruned": lambda m, o: prune.l1_unstructured(m.head, "weight", 0.5),
    "model in eval": lambda m, o: m.eval(),
    "norm in eval": lambda m, o: m.norm.eval(),
    "dropout": lambda m, o: setattr(m.drop, "p", 1.0),
    "momentum of a norm": lambda m, o: setattr(m.norm, "momentum", 0.5),
    "eps of a norm": lambda m, o: setattr(m.norm, "eps", 0.5),
    "statistics reset": lambda m, o: m.norm.reset_running_stats(),
    "activation": lambda m, o: setattr(m, "act", nn.Tanh()),
    "attribute": lambda m, o: setattr(m, "scale", 2.0),
    "stage": lambda m, o: setattr(m, "stage", 1),
    "forward of a layer": lambda m, o: setattr(m.act, "forward", torch.tanh),
    "frozen": lambda m, o: m.conv.requires_grad_(False),
    "rewritten in place": rewrite,
    "data exchanged": lambda m, o: setattr(m.head.weight, "data", m.head.weight.data / 2),
    "buffer bound": lambda m, o: setattr(m, "shift", torch.ones(8, dtype=D)),
    "buffer written": lambda m, o: m.shift.fill_(1.0),
    "layer removed": lambda m, o: m.conv.nn.pop(2),
    "rate": lambda m, o: o.param_groups[0].update(lr=2**-4),
}
FOLLOWED = {"state loaded", "rewritten in place", "buffer written", "statistics reset", "rate"}
SLOW = [pytest.param("fused", marks=pytest.mark.slow)]
MODES = ["eager", *SLOW, "step", "forward_backward"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_steps_is_followed_or_refused(name, mode, monkeypatch):
    """At the very next step, whichever number it has; plain PyG is what following means. What is
    refused is followed after another warm-up."""
    ours, theirs = Mixed().to(D), Mixed().to(D)
    theirs.load_state_dict(ours.state_dict())
    first, second = (  # recorded rates are float32
        torch.optim.SGD(model.parameters(), 2**-10, momentum=0.5) for model in (ours, theirs)
    )
    options = {"scope": mode} if mode in ("step", "forward_backward") else {}
    way = "cuda-graph" if options else mode_of(mode, monkeypatch)
    runner = made_runner(ours, FOURS, way, loss=squared, optimizer=first, **options)
    runner.warmup(STORE, phases=("step",))
    for number, batch in enumerate(runner.loader(STORE)):
        ids = real_ids(batch)
        if number == 3:
            for model, optimizer in ((ours, first), (theirs, second)):
                CHANGES[name](model, optimizer)
        if not theirs.training:  # as a step does
            theirs.train()
        try:
            loss = runner.step(batch)
        except sg.NotStatic:
            assert (number, mode == "eager", name in FOLLOWED) == (3, False, False)
            loss = runner.warmup(STORE, phases=("step",)).step(batch)
        equal([loss], [plain_step(theirs, second, ids)])
    equal(ours.state_dict().values(), theirs.state_dict().values())


class Bound(Net):
    """Its forward binds a buffer, as that of ``parametrizations.spectral_norm`` does, and more."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.other = torch.zeros((), dtype=D)

    def forward(self, x, edge_index, batch, num_graphs):
        self.seen.add_(2.0)
        self.seen = self.seen * 0.5
        self.other = self.other * 0.5 + 1.0
        return super().forward(x, edge_index, batch, num_graphs) * (self.seen + self.other)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("warm", [False, True])
def test_a_fused_forward_may_bind_tensors(warm):
    """Also once the padding check of the second epoch is over; a failing step puts them back."""
    ours, theirs = Bound().to(D), Bound().to(D)
    theirs.load_state_dict(ours.state_dict())
    first, second = sgd(ours), sgd(theirs)
    runner = sg.StaticGraphRunner(ours, FOURS, "fused", loss=squared, optimizer=first)
    if warm:
        runner.warmup(STORE)
    loader = runner.loader(STORE, indices=range(8))
    for _ in range(3):
        for batch in loader:
            equal([runner.step(batch)], [plain_step(theirs, second, real_ids(batch))])
    equal(ours.state_dict().values(), theirs.state_dict().values())
    before = ours.seen.clone()
    with pytest.raises(sg.NonFiniteLoss):
        runner.step(batch.replace(x=batch.x * torch.inf))
    equal([ours.seen], [before])


def test_a_model_of_another_dtype_is_named_by_a_fused_step():
    model = make_net()
    runner, batches = begun(model, FOURS)
    model.head.float()
    with pytest.raises(sg.NotStatic, match=r"head\.weight was torch\.float64 .* torch\.float32"):
        runner.step(next(batches))
    model.head.double()
    runner.step(next(batches))


class Counting(nn.Module):
    """Writes to a buffer, as what e3nn and others hand to TorchScript may."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 2)
        self.register_buffer("calls", torch.zeros((), dtype=D))

    def forward(self, x):
        if self.training:
            self.calls += 1.0
        return self.lin(x) * self.calls


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_part_may_be_torchscript():
    """Its parameters, buffers and submodules are no dicts, and it takes no hooks."""

    class Scripted(Net):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.jit.script(Counting())

    runner, ours, theirs = grown(Scripted, lambda model, optimizer, number: None)
    assert ours.head.calls == 3
    whole = Batch.from_data_list(GRAPHS)
    expected = theirs.eval()(whole.x, whole.edge_index, whole.batch, len(GRAPHS))
    equal([runner.predict(GRAPHS)], [expected])
    (obstacle,) = sg.check(ours, PLAN, STORE).obstacles
    words = "ScriptModule" if torch.__version__ < "2.12" else "torch.jit.script"
    assert words in obstacle.operation
