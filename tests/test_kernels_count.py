"""Operations are counted one by one: numbers derived by hand, and the command that prints them."""

from __future__ import annotations

import pytest
import torch
from support.alike import sgd
from support.command import printed_json
from support.examples import EXAMPLES

from staticgraph.cli import main
from staticgraph.dryrun.operations import (
    OperationCounter,
    count_step,
    further_launches,
    operations,
)
from staticgraph.kernels.batch_norm import gpu, small
from staticgraph.kernels.register import CUDA

ESOL = str(EXAMPLES / "esol.npz")


def test_a_step_counted_by_hand():
    """Forward: addmm, relu, mean. Backward: the mean's ones and division, ReLU's mask, the weight's
    product, the bias's sum (no product for the input, which needs no gradient). One SGD update."""
    layer, x = torch.nn.Linear(3, 4), torch.randn(5, 3)
    optimizer = sgd(layer, 0.1, fused=True)
    counted = count_step(lambda: layer(x).relu().mean(), optimizer)
    assert sorted(counted.counts["forward"]) == ["aten::addmm", "aten::mean", "aten::relu"]
    assert counted.total("forward") == 3
    assert sorted(counted.counts["backward"]) == [
        "aten::div",
        "aten::mm",
        "aten::ones_like",
        "aten::sum",
        "aten::threshold_backward",
    ]
    assert counted.total("backward") == 5
    assert counted.total("optimizer") == 1
    assert counted.launches == counted.total() == 9


@pytest.mark.parametrize(
    ("rows", "momentum", "launched"), [(1024, 0.1, 1), (1025, 0.1, 2), (1024, None, 2)]
)
def test_a_norm_is_one_launch_for_few_rows_but_for_a_cumulative_mean(
    rows, momentum, launched, monkeypatch
):
    """Which divides by a count that a launch before it moves; run as it is counted."""
    called = []
    monkeypatch.setattr(small, "forward", lambda *given: called.append(1))
    monkeypatch.setattr(gpu, "forward", lambda *given: called.append(2))
    x, ones, count = torch.zeros(rows, 4), torch.ones(4), torch.tensor(5)
    given = (x, None, None, ones, ones, count, ones, ones, count, momentum, 1e-5, True)
    CUDA["batch_norm"](*given)
    name = "staticgraph::batch_norm"
    assert called == [launched] == [operations(name, given) + further_launches(name, given)]


def test_views_and_memory_are_free_and_host_reads_apart():
    x = torch.ones(4, 4)
    with OperationCounter() as counter:
        x.t()[1:].unsqueeze(0).detach().view(1, 3, 4)
        torch.empty_like(x)
        x.sum().item()
    assert counter.total() == 1
    assert counter.host_reads == 1


def test_the_command_prints_json(capsys):
    command = ["bench", "--count-kernels", "--data", ESOL, "--layers", "1", "--hidden", "8"]
    document = printed_json([*command, "--batch-size", "4", "--eager", "--json"], capsys)
    assert document["static, kernels"]["total"] < document["PyG"]["total"]
    assert document["static"]["host_reads"] == 0, "no check of the runner is counted"
    assert main([*command, "--batch-size", "4", "--eager", "--operators"]) == 0
    assert "staticgraph::neighbours" in capsys.readouterr().out
