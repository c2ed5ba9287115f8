"""Private APIs of Dynamo: its counters and contexts, its guards, its stance, and calls of a traced
function that bypass it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.utils.checkpoint
from torch.utils.flop_counter import FlopCounterMode

from staticgraph.internals import dispatch, hooks, tracing


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_is_told_as_it_begins(reentrant):
    told = []
    x = torch.ones(3, requires_grad=True)
    with hooks.checkpoints_told(lambda: told.append(1)):
        out = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=reentrant)
    assert told == [1]
    torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=reentrant)
    assert told == [1], "nothing is left of it behind the block"
    out.sum().backward()
    assert torch.equal(x.grad, x.detach().cos())


def test_what_dynamo_notes():
    """Its counters, the current trace, a constant's source, and its exception class."""
    tracing.forget_compiled()
    inside = []

    def look(graph, inputs):
        inside.append(tracing.TracingContext.try_get())
        return graph.forward

    before = tracing.counters["stats"]["unique_graphs"]
    compiled = torch.compile(lambda x: x + 1, backend=look, fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
    assert tracing.counters["stats"]["unique_graphs"] == before + 1
    assert isinstance(inside[0], tracing.TracingContext)
    assert inside[0].fake_mode is not None

    def refused(graph, inputs):
        raise ValueError("not this one")

    tracing.forget_compiled()
    with pytest.raises(tracing.TorchDynamoException, match="not this one"):
        torch.compile(lambda x: x * 3, backend=refused)(torch.zeros(2))
    assert tracing.ConstantSource("n").source_name == "n"


def test_a_size_that_is_data_is_an_error_of_tracing_whoever_raises_it():
    """``tolist`` of as many numbers as data say raises it outside torch's own handling."""
    tracing.forget_compiled()

    def parts(rows, classes):
        return rows.split(torch.bincount(classes, minlength=2).tolist())

    compiled = torch.compile(parts, backend="eager", fullgraph=True)
    with pytest.raises(tracing.UNTRACEABLE, match="data-dependent"):
        compiled(torch.zeros(5), torch.tensor([0, 0, 0, 1, 1]))
    assert tracing.TorchDynamoException in tracing.UNTRACEABLE


def test_guards_are_not_timed_inside_in_any_thread(monkeypatch):
    """The timing is torch's own; its replacement is removed when the last user leaves."""
    timed = []
    monkeypatch.setattr(
        torch._dynamo.guards, "profile_guard_manager", lambda *_: timed.append(1) or 0.0
    )

    def compiled():
        tracing.forget_compiled()
        step = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
        assert step(torch.zeros(2)).tolist() == [1, 1]

    one, other = tracing.guards_not_timed(), tracing.guards_not_timed()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    compiled()
    assert timed == []
    other.__exit__(None, None, None)
    compiled()
    assert timed == [1]
    tracing.forget_compiled()


def test_options_that_are_not_there_are_left_out():
    with tracing.switched(allow_rnn=True, no_such_option=True):
        assert torch._dynamo.config.allow_rnn
        assert not hasattr(torch._dynamo.config, "no_such_option")


@dataclass
class Plain:
    x: torch.Tensor

    def __post_init__(self):
        self.beside = 5


@dataclass(frozen=True, slots=True)
class Slotted:
    x: torch.Tensor


@pytest.mark.parametrize("kind", [Plain, Slotted])
def test_a_copy_of_an_instance_is_traced(kind):
    def changed(x):
        instance = kind(x)
        made = dispatch.copied(instance)
        object.__setattr__(made, "x", x + 1)
        return made, instance

    for call in (changed, torch.compile(changed, backend="eager", fullgraph=True, dynamic=False)):
        made, instance = call(torch.zeros(2))
        assert type(made) is kind
        assert made is not instance
        assert made.x.tolist() == [1.0, 1.0]
        assert instance.x.tolist() == [0.0, 0.0]
        if kind is Plain and (call is changed or dispatch._LOOKS_INTO_OBJECTS):
            assert made.beside == 5
    tracing.forget_compiled()


def test_a_traced_function_is_called_without_frame_evaluation_where_its_guards_hold():
    tracing.forget_compiled()
    factor = [2]

    def scaled(*tensors):
        return tensors[0] * factor[0]

    kept = []

    def backend(graph, inputs):
        kept.append(tracing.drop_guards(lambda kind, name: kind == "TENSOR_MATCH"))
        return graph.forward

    assert tracing.traced(scaled) is None
    x = torch.ones(3)
    torch.compile(scaled, backend=backend, fullgraph=True)(x)
    found = tracing.traced(scaled)
    assert isinstance(found, tracing.Traced)
    assert kept[0] > 0
    assert found.holds({"factor": factor, "tensors": (torch.ones(4),)})  # shape guards are dropped
    assert not found.holds({"factor": [3], "tensors": (x,)})
    assert torch.equal(found.run(2 * x), 4 * x)
    tracing.forget_compiled()
    assert torch.equal(found.run(2 * x), 4 * x)


def test_guards_are_looked_at_without_a_mode_that_watches():
    tracing.forget_compiled()

    def doubled(*tensors):
        return tensors[0] * 2

    x = torch.ones(3)
    torch.compile(doubled, backend="eager", fullgraph=True)(x)
    found = tracing.traced(doubled)
    assert found.holds({"tensors": (x,)})
    assert not tracing.watched()
    with FlopCounterMode(display=False):
        assert tracing.watched()
        assert not found.holds({"tensors": (x,)})
        with tracing.unwatched():
            assert not tracing.watched()
            assert found.holds({"tensors": (x,)})
            assert not found.holds({"tensors": (x.double(),)})
        assert tracing.watched()


def test_hooks_of_a_mode_that_counts_are_away_and_come_back_in_their_order():
    """A user's hooks stay: torch guards that there are no hooks, and so must a captured step."""
    kept = torch.nn.modules.module._global_forward_hooks
    own = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with FlopCounterMode(display=False):
            before = list(kept)
            assert len(before) > 1
            with tracing.unwatched():
                assert list(kept) == [own.id]
            assert list(kept) == before
        with tracing.unwatched():
            assert list(kept) == [own.id]
    finally:
        own.remove()
    assert not kept


def test_a_stance_is_seen():
    assert tracing.as_usual()
    with torch.compiler.set_stance("force_eager"):
        assert not tracing.as_usual()
    assert tracing.as_usual()
