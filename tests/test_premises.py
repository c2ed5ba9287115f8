"""A number that a loss read when recorded, and that has changed since, is named in an error."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.alike import squared
from support.plain_epochs import PLAN, STORE, Net, make_net
from support.runners import sgd_runner
from torch import nn

import staticgraph as sg

SCALE = 1.0
TENSOR = torch.ones(())
CONFIG = SimpleNamespace(beta=1.0, other=3)
TABLE = {"beta": 1.0}
LIST = [1.0, 2.0]
ARRAY = np.ones(2)


class Options:
    beta = 1.0


class Owner:
    def __init__(self) -> None:
        self.beta, self._seen, self.other = 1.0, 0, 5

    def loss(self, out, batch):
        self._seen += 1
        return squared(out, batch) * self.beta

    def __call__(self, out, batch):
        return self.loss(out, batch)


def helper():
    return SCALE


def reader(read):
    return lambda out, batch: squared(out, batch) * read()


def by_global(out, batch):
    return squared(out, batch) * SCALE


def by_default(out, batch, beta=1.0):
    return squared(out, batch) * beta


def set_global(name, value):
    globals()[name] = value


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def forward(self, out, batch):
        return squared(out, batch) * self.beta


OWNER = Owner()
MODULE = Weighted()
BOUND = partial(by_default, beta=1.0)
# The loss, the change, and what the error message says about it.
CHANGES = {
    "global": (by_global, lambda: set_global("SCALE", 2.0), "loss: SCALE was 1.0, is 2.0"),
    "function": (reader(lambda: helper()), lambda: set_global("SCALE", 2.0), "SCALE was 1.0"),
    "tensor": (
        reader(lambda: TENSOR),
        lambda: set_global("TENSOR", torch.ones(())),
        "TENSOR was a Tensor, is another",
    ),
    "field": (reader(lambda: CONFIG.beta), lambda: vars(CONFIG).update(beta=2.0), "CONFIG.beta"),
    "class": (reader(lambda: Options.beta), lambda: setattr(Options, "beta", 2.0), "Options.beta"),
    "item": (reader(lambda: TABLE["beta"]), lambda: TABLE.update(beta=2.0), "TABLE was"),
    "list": (reader(lambda: LIST[0]), lambda: LIST.__setitem__(0, 2.0), "LIST was"),
    "array": (reader(lambda: float(ARRAY[0])), lambda: ARRAY.fill(2.0), "ARRAY was"),
    "method": (OWNER.loss, lambda: setattr(OWNER, "beta", 2.0), "self.beta was 1.0, is 2.0"),
    "called": (OWNER, lambda: setattr(OWNER, "beta", 2.0), "self.beta was 1.0, is 2.0"),
    "module": (MODULE, lambda: setattr(MODULE, "beta", 2.0), "self.beta was 1.0, is 2.0"),
    "module by name": (
        reader(lambda: MODULE.beta),
        lambda: setattr(MODULE, "beta", 2.0),
        "MODULE.beta was 1.0, is 2.0",
    ),
    "default": (by_default, lambda: setattr(by_default, "__defaults__", (2.0,)), "beta was 1.0"),
    "partial": (BOUND, lambda: BOUND.keywords.update(beta=2.0), "loss: beta was 1.0, is 2.0"),
}


@pytest.fixture(autouse=True)
def as_before():
    yield
    set_global("SCALE", 1.0)
    CONFIG.beta = Options.beta = TABLE["beta"] = LIST[0] = OWNER.beta = MODULE.beta = 1.0
    ARRAY.fill(1.0)
    by_default.__defaults__ = (1.0,)
    BOUND.keywords.update(beta=1.0)


def recorded(loss, model, phases=("step",)):
    runner = sgd_runner(model, PLAN, "cuda-graph", loss=loss, rate=1e-3)
    return runner.warmup(STORE, phases=phases)


def begun(loss, model):
    """A recorded runner after its first step, and the batches that follow."""
    runner = recorded(loss, model)
    batches = iter(runner.loader(STORE))
    runner.step(next(batches))
    return runner, batches


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_recorded_loss_read_and_has_changed_is_an_error(what):
    loss, change, said = CHANGES[what]
    runner, batches = begun(loss, make_net())
    change()
    with pytest.raises(sg.NotStatic, match="a replay would go on as it was") as raised:
        runner.step(next(batches))
    assert said in str(raised.value)


def test_the_loss_of_an_evaluation_is_not_recorded_and_follows():
    runner = recorded(by_global, make_net(), ("eval",))
    batch = next(iter(runner.loader(STORE)))
    before = runner.eval_step(batch).loss.item()
    set_global("SCALE", 2.0)
    assert runner.eval_step(batch).loss.item() == pytest.approx(2 * before, rel=1e-12)
    runner.predict(STORE)


def test_what_the_models_own_forward_read():
    class Scaled(Net):
        def forward(self, x, edge_index, batch, num_graphs):
            return super().forward(x, edge_index, batch, num_graphs) * SCALE

    runner, batches = begun(squared, Scaled().double())
    set_global("SCALE", 2.0)
    with pytest.raises(sg.NotStatic, match="the model: SCALE was"):
        runner.step(next(batches))


def test_a_tensor_that_is_written_to_is_followed():
    weight = torch.ones((), dtype=torch.float64)
    loss = reader(lambda: weight)
    ours = recorded(loss, make_net())
    theirs = sgd_runner(make_net(), PLAN, loss=loss, rate=1e-3)
    for batch in ours.loader(STORE):
        weight.mul_(0.5)
        torch.testing.assert_close(ours.step(batch), theirs.step(batch), rtol=1e-6, atol=0)


def test_what_the_recorded_run_itself_writes_is_no_premise():
    calls = []

    def counted(out, batch):
        calls.append(1)
        return squared(out, batch) * SCALE

    runner = recorded(counted, make_net())
    for _ in range(2):
        for batch in runner.loader(STORE):
            runner.step(batch)
        calls.append(2)
