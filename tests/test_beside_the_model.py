"""A loss, an optimizer and hooks have state of their own, and checks and warm-ups leave it alone.

Each is trained in plain PyG, and by a runner that checks its first batch and, in some tests, times
its ways first: everything that either of them trained is equal afterwards.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.alike import squared
from support.plain_epochs import PLAN, STORE, D, equal, make_net, plain_step, sgd
from torch import Tensor, nn

import staticgraph as sg
from staticgraph.runner.ways import Auto

TIMED = Auto(rounds=5)


def mask_of(out: Tensor, batch) -> Tensor:
    masked = isinstance(batch, sg.StaticBatch)
    return batch.graph_mask[:, None] if masked else torch.ones(len(out), 1, dtype=torch.bool)


def trained(model, loss, optimizer, mode) -> list[Tensor]:
    """The losses of an epoch; ``mode`` is None for plain PyG."""
    if mode is None:
        parts = [range(first, first + 8) for first in (0, 8, 16)]
        return [plain_step(model, optimizer, ids, loss) for ids in parts]
    runner = sg.StaticGraphRunner(model, PLAN, mode, loss=loss, optimizer=optimizer)
    if mode != "eager":
        runner.warmup(STORE)
    batches = runner.loader(STORE, indices=range(24))
    return [runner.step(batch) for batch in batches]


class Uncertain(nn.Module):
    """A learned weight per task, and the running mean of the targets."""

    def __init__(self) -> None:
        super().__init__()
        self.spread = nn.Parameter(torch.zeros(2, dtype=D))
        self.register_buffer("centre", torch.zeros(2, dtype=D))

    def forward(self, out, batch):
        mask = mask_of(out, batch)
        with torch.no_grad():
            self.centre.lerp_((batch.y * mask).sum(0) / mask.sum(), 0.1)
        return (out - batch.y - self.centre).square() * (-self.spread).exp() + self.spread


WAYS = pytest.mark.parametrize("mode", ["eager", TIMED, "fused"], ids=["eager", "auto", "fused"])


@pytest.mark.sampled(2)
@WAYS
@pytest.mark.parametrize("by_name", [False, True], ids=["itself", "lambda"])
def test_a_loss_with_parameters_and_buffers(mode, by_name):
    runs = []
    for way in (None, mode):
        model, loss = make_net(), Uncertain()
        called = (lambda out, batch, loss=loss: loss(out, batch)) if by_name else loss
        losses = trained(model, called, sgd(model, loss), way)
        runs.append([*losses, *model.state_dict().values(), *loss.state_dict().values()])
    equal(*runs)


@pytest.mark.sampled(2)
@WAYS
def test_a_memory_bank_and_a_bare_parameter(mode):
    runs = []
    for way in (None, mode):
        model, bank = make_net(), torch.zeros(4, 2, dtype=D)
        weight = nn.Parameter(torch.zeros(2, dtype=D))

        def loss(out, batch, bank=bank, weight=weight):
            mask = mask_of(out, batch)
            values = (out - batch.y - bank.mean(0)).square() + (weight - 1).square()
            with torch.no_grad():
                newest = (out * mask).sum(0) / mask.sum()
                bank.copy_(torch.cat([bank[1:], newest[None]]))
            return values

        optimizer = torch.optim.SGD([*model.parameters(), weight], 1e-3)
        losses = trained(model, loss, optimizer, way)
        runs.append([*losses, *model.state_dict().values(), bank, weight])
    equal(*runs)


class Irreps(tuple):
    """As e3nn's, which have no length."""

    __len__ = None


@pytest.mark.parametrize("mode", ["eager", TIMED], ids=["eager", "auto"])
def test_lists_and_dicts_of_the_model_and_of_the_loss(mode):
    runs, seen, irreps = [], Counter(), Irreps([[]])
    for way in (None, mode):
        model = make_net()
        model.scale, model.last = {"now": 1.0}, deque(maxlen=2)
        means: list[float] = []

        class Scaled(type(model)):
            """Scales its output by what its earlier forwards left."""

            def forward(self, x, edge_index, batch, num_graphs):
                out = super().forward(x, edge_index, batch, num_graphs)
                if self.training:
                    self.scale["now"] *= 0.9
                    self.last.append(len(self.last))
                return out * self.scale["now"] + len(self.last)

        def loss(out, batch, means=means, irreps=irreps):
            means.append(float(len(means)))
            seen["losses"] += 1
            return (out - batch.y - sum(means)).square()

        model.__class__ = Scaled
        seen.clear()
        losses = trained(model, loss, sgd(model), way)
        runs.append([*losses, *map(torch.tensor, (*means, *model.last, *seen.values()))])
    equal(*runs)


class Caching(nn.Module):
    """Makes a tensor at its first forward, and finds it in a dict later."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.cache = make_net(), {}

    def forward(self, x, edge_index, batch, num_graphs):
        if "ones" not in self.cache:
            self.cache["ones"] = torch.ones(2, dtype=D)
        return self.net(x, edge_index, batch, num_graphs) * self.cache["ones"]


def test_a_cache_that_a_compiled_step_reads_stays():
    runs = []
    for way in (None, "fused"):
        model = Caching()
        runs.append(trained(model, squared, sgd(model), way))
    equal(*runs)


class Lookahead(torch.optim.SGD):
    """Slow weights, a counter in its param group and another in an attribute."""

    def __init__(self, params) -> None:
        super().__init__(params, 1e-3, momentum=0.9)
        self.turn = 0
        self.param_groups[0]["k"] = 0
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]
        self.last: deque[Tensor] = deque(maxlen=2)

    def step(self, closure=None):
        super().step()
        group = self.param_groups[0]
        self.turn += 1
        group["k"] += 1
        self.last.append(group["params"][0].detach().clone())
        if self.turn % 2 == 0 and group["k"] % 2 == 0:
            with torch.no_grad():
                for slow, parameter in zip(self.slow, group["params"], strict=True):
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)


def test_an_optimizer_that_keeps_more_than_state():
    runs = []
    for way in (None, TIMED):
        model = make_net()
        optimizer = Lookahead(model.parameters())
        losses = trained(model, squared, optimizer, way)
        assert (optimizer.turn, optimizer.param_groups[0]["k"]) == (3, 3)
        runs.append([*losses, *model.state_dict().values(), *optimizer.slow, *optimizer.last])
    equal(*runs)


@pytest.mark.sampled(2)
@WAYS
def test_hooks_of_parameters_and_of_the_optimizer(mode):
    """A hook that keeps a norm, an optimizer step in the backward, an average after each step."""
    runs = []
    for way in (None, mode):
        model = make_net()
        norm, average = torch.ones((), dtype=D), torch.zeros(2, 8, dtype=D)

        def scaled(grad, norm=norm):
            norm.mul_(0.9).add_(grad.norm(), alpha=0.1)
            return grad / norm

        own = torch.optim.SGD([model.head.bias], 1e-3, momentum=0.9)

        def at_once(parameter, own=own):
            own.step()
            own.zero_grad()

        model.conv.nn[0].weight.register_hook(scaled)
        model.head.bias.register_post_accumulate_grad_hook(at_once)
        optimizer = sgd(model.conv)
        optimizer.add_param_group({"params": [model.head.weight]})

        def moved(*_, average=average, model=model):
            average.lerp_(model.head.weight.detach(), 0.1)

        optimizer.register_step_post_hook(moved)
        losses = trained(model, squared, optimizer, way)
        runs.append([*losses, *model.state_dict().values(), norm, average])
    equal(*runs)


def test_numbers_of_numpy_and_python_are_drawn_as_without_a_check():
    """Although the model and its loss have been run several times before the first step."""
    runs = []
    for way in (None, "eager", "fused"):
        model = make_net()
        np.random.seed(3)  # noqa: NPY002
        weights = nn.Parameter(torch.ones(2, dtype=D))

        def loss(out, batch):
            drawn = torch.as_tensor(np.random.beta(0.4, 0.4), dtype=D)  # noqa: NPY002
            return squared(out, batch) * drawn

        warns = pytest.warns(UserWarning, match="fused by themselves")
        with warns if way == "fused" else nullcontext():  # a trace cannot hold such a number
            runs.append([*trained(model, loss, sgd(model), way), weights])
    for run in runs[1:]:
        equal(runs[0], run)
