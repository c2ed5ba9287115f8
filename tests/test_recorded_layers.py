"""Every layer of the support table can be recorded: on the tape, a host read is an error and an
address that is not written gives wrong numbers."""

from __future__ import annotations

import pytest
import torch
from support.layer_cases import CASES
from support.layer_model import call, model_of
from support.parity import BATCH, CAPACITY, STORE, loss
from support.tape import TapeRecorder

import staticgraph as sg


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.eager_only], ids=lambda case: case.name
)
def test_every_layer_replays_like_eager(case):
    """Loss, gradients and outputs of a replay on data that were not recorded match in float64,
    since the calls are the same bit for bit; and changing an input field changes the output."""
    model = model_of(case)
    subject = sg.Subject(
        model,
        loss,
        torch.optim.SGD(model.parameters(), lr=0.0),
        forward=call,
        check_padding=False,  # test_padding_check.py covers each layer
    )
    recording = sg.Recording(scope="forward_backward", recorder=TapeRecorder)
    runner = sg.StaticGraphRunner(subject, [CAPACITY], "cuda-graph", recording=recording)
    try:
        found = runner.warmup(STORE, progress=False).verify(BATCH)
    finally:
        runner.close()
    assert max(found.errors.values()) <= 1e-12, str(found)
    assert found.moved, str(found)


@pytest.mark.parametrize("phases", [("step",), ("eval", "step")])
def test_what_a_look_at_the_model_registers_is_recorded(phases):
    """A norm over rows of unknown number gets its flag when the model is inspected; without a
    padding check that happens right before recording."""
    (case,) = (case for case in CASES if case.name == "PPFConv")
    model = model_of(case)
    subject = sg.Subject(
        model,
        loss,
        torch.optim.SGD(model.parameters(), lr=0.0),
        forward=call,
        check_padding=False,
    )
    recording = sg.Recording(scope="forward_backward", recorder=TapeRecorder)
    runner = sg.StaticGraphRunner(subject, [CAPACITY], "cuda-graph", recording=recording)
    runner.warmup(STORE, progress=False, phases=phases)
    assert "_staticgraph_single" in {name.rpartition(".")[2] for name, _ in model.named_buffers()}
    assert torch.isfinite(runner.step(BATCH))
    runner.close()
