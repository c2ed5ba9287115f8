"""A runner inside the forward, loss, warm-up or compiled step of another runner: allowed and
refused calls."""

from __future__ import annotations

import copy
import functools
import threading

import pytest
import torch
from support.places import mode_of
from support.runners import made_runner, sgd_runner
from support.threaded import (
    CAPACITY,
    GRAPHS,
    PATIENCE_S,
    STORE,
    Elsewhere,
    Net,
    Once,
    batch_of,
    loss,
    plain,
    runner_of,
)
from torch_geometric.data import Batch

import staticgraph as sg
from staticgraph.nn.context import bound_batch


class Student(Net):
    """Also learns from another model's outputs, which it computes in the middle of its forward."""

    def forward(self, x, edge_index, batch, teach):
        taught = []
        self.middle = lambda: taught.append(teach())
        return super().forward(x, edge_index, batch) - taught[0]


@pytest.mark.parametrize("mode", ["eager", "cuda-graph", "traced"])
def test_a_teacher_runs_inside_a_students_forward(mode, monkeypatch):
    mode = mode_of(mode, monkeypatch)
    teacher = Net(1)
    plain_teacher, plain_student = copy.deepcopy(teacher).eval(), Student(2)
    data = Batch.from_data_list(GRAPHS[:10])
    given = data.x, data.edge_index, data.batch
    out = plain_student(*given, lambda: plain_teacher(*given).detach())
    expected = loss(out, data).mean()

    teaching = runner_of(teacher, mode=mode, loss=None)
    if mode != "eager":
        teaching.warmup(STORE)

    def forward(model, batch):
        return model(
            batch.x, batch.edge_index, batch.batch, lambda: teaching.eval_step(batch).out.clone()
        )

    student = runner_of(Student(2), forward=forward)
    for _ in range(2):  # the second uses the compiled or recorded step
        torch.testing.assert_close(student.eval_step(batch_of()).loss, eval_loss(data))
    found = student.step(batch_of())
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    assert teacher.training
    assert bound_batch.present() is None


class Mixing(Student):
    def forward(self, x, edge_index, batch, teach):
        return super().forward(x - x.mean(0), edge_index, batch, teach)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["eager", pytest.param("fused", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [Student, Mixing])
def test_padding_is_checked_past_a_teacher(kind, mode):
    plan, model = [sg.Capacity(120, 300, 20, 10), CAPACITY], kind(2)
    teaching = made_runner(Net(1), plan, mode=mode)

    def forward(model, batch):
        given = batch.x, batch.edge_index, batch.batch
        return model(*given, lambda: teaching.eval_step(batch).out.clone())

    runner = sgd_runner(model, plan, loss=loss, rate=0.1, forward=forward)
    batch = batch_of()
    if kind is Student:
        runner.step(batch)
        assert not runner.preparation.padding.wanted("step")
    else:
        with pytest.raises(sg.errors.PaddingLeaks):
            runner.step(batch)


def eval_loss(data) -> torch.Tensor:
    given = data.x, data.edge_index, data.batch
    with torch.no_grad():
        out = Student(2).eval()(*given, lambda: Net(1).eval()(*given))
    return loss(out, data).mean()


def test_a_model_evaluates_itself_inside_its_loss():
    alone, model = Net(), Net()
    expected = runner_of(alone).step(batch_of()) + runner_of(Net()).predict(GRAPHS[:3]).sum()

    def of_both(out, batch):
        return loss(out, batch) + holder.predict(GRAPHS[:3]).sum()

    holder = runner_of(model, loss=of_both)
    norm, others = copy.deepcopy(model.norm.state_dict()), Net()
    others.load_state_dict(model.state_dict())
    found = holder.step(batch_of())
    assert model.training
    assert not torch.equal(model.norm.running_mean, norm["running_mean"])
    # The predictions inside the loss use the statistics that this step's forward has updated.
    updated = {k: v for k, v in alone.state_dict().items() if "running" in k or "num_" in k}
    others.load_state_dict(updated, strict=False)
    inside = plain(others.eval(), GRAPHS[:3]).sum()
    first = expected - runner_of(Net()).predict(GRAPHS[:3]).sum()
    assert torch.allclose(found, first + inside.detach(), rtol=0, atol=1e-10)


def test_a_step_inside_its_own_forward_is_refused():
    middle = Once(lambda: runner.step(batch_of()))
    runner = runner_of(Net(middle=middle))
    with pytest.raises(RuntimeError, match=r"^step\(\) of a model inside a forward of its own"):
        runner.step(batch_of())
    assert float(runner.step(batch_of())) > 0  # no state is left over
    assert bound_batch.present() is None


def test_a_runner_inside_its_own_warmup_is_refused():
    model = Net()
    runner = runner_of(model, mode="cuda-graph")
    model.middle = lambda: runner.eval_step(batch_of())
    with pytest.raises(sg.NotStatic, match=r"a forward of a model inside its own warmup\(\)"):
        runner.warmup(STORE)


def test_a_runner_inside_a_compiled_step_is_refused():
    teacher = runner_of(Net(1))
    student = runner_of(
        Net(2), mode="default", forward=lambda m, b: m(b.x, b.edge_index, b.batch) - teacher(b)
    )
    with pytest.raises(sg.NotStatic, match="of a runner stands inside a compiled step: "):
        student.step(batch_of())


def test_models_that_wait_for_each_other_are_refused():
    """Two threads each run the other's model inside a forward: one gets an error, none hangs."""
    ready = threading.Barrier(2)
    middles = [Once(), Once()]
    runners = [runner_of(Net(seed, middle=middles[seed])) for seed in range(2)]

    def ask(other):
        ready.wait(PATIENCE_S)
        runners[other].eval_step(batch_of())

    for own in range(2):
        middles[own].work = functools.partial(ask, 1 - own)
    works = [Elsewhere(lambda r=runner: r.eval_step(batch_of()).out) for runner in runners]
    for work in works:
        work.start()
    outcomes = []
    for work in works:
        try:
            work.result()
            outcomes.append("ran")
        except RuntimeError as error:
            outcomes.append(str(error))
    refused, ran = sorted(outcomes, key=len, reverse=True)
    assert "waits for a model that another thread runs" in refused
    assert ran == "ran"
