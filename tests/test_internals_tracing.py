"""Private APIs of Dynamo: its counters and contexts, its guards, its stance, and calls of a traced
function that bypass it."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint

from staticgraph.internals import tracing


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


def test_options_that_are_not_there_are_left_out():
    with tracing.switched(allow_rnn=True, no_such_option=True):
        assert torch._dynamo.config.allow_rnn
        assert not hasattr(torch._dynamo.config, "no_such_option")


def test_a_stance_is_seen():
    assert tracing.as_usual()
    with torch.compiler.set_stance("force_eager"):
        assert not tracing.as_usual()
    assert tracing.as_usual()
