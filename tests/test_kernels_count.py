"""Operations are counted one by one: numbers derived by hand, and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from support.alike import sgd

from staticgraph.cli import main
from staticgraph.dryrun.operations import OperationCounter, count_step

ESOL = str(Path(__file__).parents[1] / "examples" / "data" / "esol.npz")


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


def test_views_and_memory_are_free_and_host_reads_apart():
    x = torch.ones(4, 4)
    with OperationCounter() as counter:
        x.t()[1:].unsqueeze(0).detach().view(1, 3, 4)
        torch.empty_like(x)
        x.sum().item()
    assert counter.operations.total() == 1
    assert counter.operations.host_reads == 1


def test_the_command_prints_json(capsys):
    command = ["bench", "--count-kernels", "--data", ESOL, "--layers", "1", "--hidden", "8"]
    assert main([*command, "--batch-size", "4", "--eager", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["static, kernels"]["total"] < document["PyG"]["total"]
    assert main([*command, "--batch-size", "4", "--eager", "--operators"]) == 0
    assert "staticgraph::neighbour_sum" in capsys.readouterr().out
