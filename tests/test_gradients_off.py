"""Blocks without gradients around a runner's calls: a step refuses to run in one, and nothing made
inside one prevents training afterwards."""

from __future__ import annotations

import pytest
import torch
from support.linear_net import Linear
from support.runners import sgd_runner

import staticgraph as sg
from staticgraph.nn.norm.batch_norm import SINGLE, flag_single_rows

CAPACITY = (900, 1900, 33)
OFF = [torch.no_grad, torch.inference_mode]


def runner_of(mode="eager"):
    torch.manual_seed(0)
    model = Linear()
    return sgd_runner(model, [CAPACITY], mode, rate=1e-5)


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("mode", ["eager", "cuda-graph"])
def test_a_step_without_gradients_is_refused(mode, off, hiv):
    runner = runner_of(mode)
    batch = sg.StaticBatch.of(hiv, range(8), CAPACITY)
    if mode != "eager":
        runner.warmup(hiv)
    before = runner.model.linear.weight.clone()
    with off(), pytest.raises(RuntimeError, match=r"step\(\) trains.*eval_step"):
        runner.step(batch)
    assert torch.equal(runner.model.linear.weight, before)


@pytest.mark.parametrize("off", OFF)
def test_a_warm_up_without_gradients_records_steps_that_train(off, hiv):
    batch = sg.StaticBatch.of(hiv, range(8), CAPACITY)
    eager, recorded = runner_of(), runner_of("cuda-graph")
    with off():
        recorded.warmup(hiv)
    for _ in range(2):
        torch.testing.assert_close(recorded.step(batch), eager.step(batch))
    torch.testing.assert_close(recorded.model.state_dict(), eager.model.state_dict())


def test_a_loader_that_inference_used_first_serves_training(hiv):
    """Its slots are made once and kept."""
    runner = runner_of()
    loader = runner.loader(hiv, indices=range(64), exact=False)
    with torch.inference_mode():
        evaluated = [float(runner.eval_step(batch).loss) for batch in loader]
    assert len(evaluated) > 1
    for batch in loader:
        runner.step(batch)


def test_a_norms_flag_that_inference_made_is_written_to_by_training():
    norm = torch.nn.BatchNorm1d(2)
    with torch.inference_mode():
        flag_single_rows(norm, torch.device("cpu"))
    getattr(norm, SINGLE).logical_or_(torch.tensor(True))
    assert getattr(norm, SINGLE)
