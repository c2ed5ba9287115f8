"""``staticgraph try``: plain PyG and this library in turn, and the report about them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from support.alike import adam, squared, update
from support.command import printed_json
from support.gine_net import Net
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph import models
from staticgraph.checking.plain_batch import PlainBatch
from staticgraph.training.versus import comparison, sides
from staticgraph.training.versus.comparison import compare
from staticgraph.training.versus.sides import (
    PlainSide,
    StaticSide,
    VersusSetting,
    plain_mean,
)


class Branches(Net):
    def forward(self, x, edge_index, edge_attr, batch):
        h = super().forward(x, edge_index, edge_attr, batch)
        if h.sum() > 0:
            h = 2 * h
        return h


class Broken(Net):
    def forward(self, x, edge_index, edge_attr, batch):
        raise RuntimeError("seven")


@pytest.fixture(scope="module")
def few(esol) -> sg.GraphStore:
    return sg.GraphStore.from_pyg(esol[:80], name="few", progress=False)


def tried(model: nn.Module, store: sg.GraphStore, *modes: str):
    return compare(
        model, store, loss=squared, batch_size=16, seconds=0.01, modes=modes, progress=False
    )


@pytest.fixture(scope="module")
def report(few):
    torch.manual_seed(0)
    return tried(Net(), few, "eager", "fused")


def test_both_sides_are_measured_and_compute_the_same(report):
    plain, *others = report.sides
    assert [side.name for side in report.sides] == ["PyG", "eager", "fused"]
    assert all(side.ran and side.turns >= 5 and side.graphs_per_s > 0 for side in report.sides)
    assert plain.filling == {"nodes": 1.0, "edges": 1.0, "graphs": 1.0}
    assert plain.losses_apart is None
    for side in others:
        assert 0.5 < side.filling["nodes"] <= 1
        assert 0.5 < side.filling["edges"] <= 1
        assert side.losses_apart <= 1e-4
        assert len(side.losses) == len(plain.losses) == report.graphs // 16
        assert side.memory["held_bytes"] >= plain.memory["held_bytes"] > 0
        assert side.memory["step_bytes"] > 0
    assert report.outputs_apart <= 1e-5
    assert report.ok
    assert not report.random


def test_the_losses_are_those_of_a_loop_by_hand(few, report):
    """An independent oracle: torch, PyG's Batch, and the batches in their order."""
    torch.manual_seed(0)
    model = Net()
    optimizer = adam(model, lr=1e-3)
    losses = []
    for ids in VersusSetting(model, few, squared, batch_size=16).course(
        len(report.sides[0].losses)
    ):
        data = Batch.from_data_list(few[ids])
        loss = F.mse_loss(model(data.x, data.edge_index, data.edge_attr, data.batch), data.y)
        update(optimizer, loss)
        losses.append(loss.item())
    assert list(report.sides[0].losses) == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize(
    ("winner", "ratio", "head"),
    [
        ("eager", 1.7, "fastest: eager, "),
        ("fused", 1.2, "recommended: fused, "),
        ("PyG", 1.2, "recommended: PyG; "),
        ("PyG", 1.02, "fastest: PyG; "),
    ],
)
def test_the_fastest_is_called_so_alone(report, winner, ratio, head):
    """A median above that of the recommended side means that the gain was not steady."""
    rates = {"PyG": 1.0, "eager": ratio, "fused": 1.0}
    sides = tuple(replace(side, ratio=rates[side.name]) for side in report.sides)
    *_, verdict = str(replace(report, sides=sides, winner=winner)).partition("outputs in eval")
    assert head in verdict
    unsteady = "eager is faster in the median, but not steadily (see p10 to p90): measure again"
    assert (unsteady in verdict) == head.startswith("recommended")


def test_a_mode_that_cannot_be_is_named_and_the_others_run(few):
    report = tried(Branches(), few, "eager", "default")
    plain, eager, compiled = report.sides
    assert plain.ran
    assert eager.ran
    assert not compiled.ran
    assert "cannot be compiled in fixed shapes" in compiled.refused
    (branch,) = (o for o in report.obstacles if o.kind == "branch on data")
    assert branch.line == "if h.sum() > 0:"
    assert report.to_dict()["obstacles"][0]["where"] in str(report)
    assert "compute both and choose with torch.where" in str(report)
    assert report.ok


def test_a_model_that_does_not_run_anywhere(few):
    report = tried(Broken(), few, "eager")
    assert [side.refused for side in report.sides] == ["seven", "seven"]
    assert report.winner == ""
    assert not report.ok
    assert "no side ran" in str(report)


def test_losses_are_not_compared_where_a_step_draws_random_numbers(few):
    report = tried(Net(dropout=0.5), few, "eager")
    assert report.random
    assert [side.losses_apart for side in report.sides] == [None, None]
    assert report.outputs_apart <= 1e-5
    assert "so losses are not compared" in str(report)


def test_where_plain_pyg_does_not_run_the_first_that_does_is_compared_with(few, monkeypatch):
    def refuse(side):
        raise RuntimeError("no loader here")

    monkeypatch.setattr(PlainSide, "turn", refuse)
    report = tried(Net(), few, "eager", "fused")
    assert report.sides[0].refused == "no loader here"
    assert report.compared_with == "eager"
    assert report.sides[2].equal
    assert report.ok
    assert "times eager" in str(report)
    assert "times PyG" not in str(report)
    assert "PyG did not run: no loader here" in str(report)


def test_what_computes_something_else_is_said_and_does_not_win(few, monkeypatch):
    turn = StaticSide.turn
    monkeypatch.setattr(StaticSide, "turn", lambda side: 1.1 * turn(side))
    report = tried(Net(), few, "eager")
    assert report.sides[1].equal is False
    assert report.winner == "PyG"
    assert "NO" in str(report)
    assert not report.ok


def test_sides_take_turns_and_the_order_alternates():
    order: list[str] = []
    sides = {name: lambda name=name: order.append(name) for name in "ab"}
    times = comparison.take_turns(sides, 0.0, lambda: None)
    assert "".join(order[:4]) == "abba"
    assert len(times["a"]) == comparison.LEAST_ROUNDS


@pytest.mark.parametrize("weighted", [False, True])
def test_missing_labels_count_as_the_runner_counts_them(weighted):
    nan = float("nan")
    labels = torch.tensor([[[1.0, nan]], [[nan, 0.0]], [[0.5, 2.0]]])
    graphs = [
        Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y) for y in labels
    ]
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    head = nn.Linear(1, 2)
    weights = torch.tensor([[1.0, 3.0]])

    def loss(out, batch):
        values = F.mse_loss(out, batch.y, reduction="none")
        return (values, weights) if weighted else values

    def forward(model, batch):
        return model(global_add_pool(batch.x, batch.batch, batch.num_graphs))

    data = PlainBatch(Batch.from_data_list(graphs))
    found = plain_mean(loss, forward(head, data), data, ["y"])
    runner = sg.StaticGraphRunner(head, [(10, 12, 4)], "eager", loss=loss, forward=forward)
    (batch,) = runner.loader(store)
    assert found.item() == pytest.approx(float(runner.eval_step(batch).loss), rel=1e-6)
    found.backward()
    assert head.weight.grad.isfinite().all()


# ---------------------------------------------------------------------- the command


def test_the_command_prints_a_table_and_writes_both_files(few, tmp_path, capsys):
    few.save(tmp_path / "few")
    words = ["try", "--data", str(tmp_path / "few"), "--model", "gin", "--hidden", "8", "--layers",
             "1", "--batch-size", "16", "--modes", "eager", "--seconds", "0.01",
             "--out", str(tmp_path / "out"), "--json"]  # fmt: skip
    values = printed_json(words, capsys)
    assert values == json.loads((tmp_path / "out" / "try.json").read_text())
    assert values["model"] == type(models.build("gin", few)).__name__
    assert [side["name"] for side in values["sides"]] == ["PyG", "eager"]
    assert (tmp_path / "out" / "try.png").read_bytes().startswith(b"\x89PNG")


def test_each_contender_runs_on_the_threads_that_suit_it(few, monkeypatch):
    """As on a busy machine, where what takes turns with others on every core crawls."""
    used: dict[str, set[int]] = {}

    def seconds_of(action):
        action()
        return 9.0 if torch.get_num_threads() > 1 and action.__self__.name == "PyG" else 0.5

    def turns(all_turns, *_, **__):
        for name, turn in all_turns.items():
            turn()
            used[name] = {torch.get_num_threads()}
        return {name: [100.0] for name in all_turns}

    monkeypatch.setattr(sides, "seconds_of", seconds_of)
    monkeypatch.setattr(comparison, "take_turns", turns)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        report = compare(
            Net(), few, loss=squared, batch_size=16, seconds=0.1, modes=["eager", "fused"]
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert used == {"PyG": {1}, "eager": {2}, "fused": {1}}
    assert [side.threads for side in report.sides] == [1, 2, 1]
    assert [side.crawls for side in report.sides] == [True, True, True]
    assert "WARNING: PyG took over ten times as long as before on one thread" in str(report)
