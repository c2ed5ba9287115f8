"""``staticgraph probe`` and ``staticgraph plan --max-memory``: tables, JSON, pictures, errors."""

from __future__ import annotations

import json

import pytest
from support.command import status_of

import staticgraph as sg
from staticgraph import cli
from staticgraph.cli.reports.memory_plots import save_memory_picture
from staticgraph.memory.model import MemoryModel

SMALL = ["--model", "gcn", "--hidden", "8", "--layers", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory, esol) -> str:
    few = sg.GraphStore.from_pyg([esol[i] for i in range(200)], name="few")
    path = tmp_path_factory.mktemp("data") / "few"
    few.save(path)
    return str(path)


@pytest.fixture(scope="module")
def memory(data, tmp_path_factory):
    """The JSON of a probe, and the picture it drew."""
    folder = tmp_path_factory.mktemp("probe")
    out, picture = folder / "memory.json", folder / "memory.png"
    words = ["--out", str(out), "--plot", str(picture), "--max-memory", "70MiB"]
    assert cli.main(["probe", "--data", data, *SMALL, *words]) == 0
    return out


def test_the_table_has_points_coefficients_residual_and_held_out_error(data, capsys):
    assert cli.main(["probe", "--data", data, *SMALL]) == 0
    text = capsys.readouterr().out
    for word in ("held out", "residual 0.00%", "held-out error 0.00%", " nodes + ", "points in"):
        assert word in text
    assert "+-0.00%" not in text
    assert "-0.00%" not in text


def test_json_is_the_same_model(data, memory, capsys):
    assert cli.main(["probe", "--data", data, *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("seconds") > 0
    assert MemoryModel.from_dict(found) == MemoryModel.load(memory)


def test_the_picture_is_drawn(memory, tmp_path):
    png = b"\x89PNG\r\n\x1a\n"
    assert memory.with_suffix(".png").read_bytes()[:8] == png
    alone = MemoryModel.load(memory)
    save_memory_picture(tmp_path / "alone.png", MemoryModel(alone.fit, points=alone.points), "x")
    assert (tmp_path / "alone.png").read_bytes()[:8] == png


def test_a_plan_for_a_cap(data, memory, capsys, tmp_path):
    plan = tmp_path / "plan.json"
    words = ["--memory", str(memory), "--max-memory", "300KiB", "--min-steps", "1"]
    assert cli.main(["plan", "--data", data, *words, "--out", str(plan)]) == 0
    assert "by memory, most of it" in capsys.readouterr().out
    found = sg.BucketPlan.load(plan)
    assert sg.MemoryBudget("300KiB").fits(MemoryModel.load(memory), found.capacities)
    assert "predicted" in found.note


def test_a_plan_probes_the_model_that_is_named(data, capsys):
    assert cli.main(["plan", "--data", data, *SMALL, "--max-memory", "1GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-memory", "1KiB"], "the floor for this plan"),
        (["--max-memory", "3 parsecs"], "no amount of memory"),
        (["--memory", "nowhere.json", "--max-memory", "1GiB"], "nowhere.json"),
    ],
)
def test_errors_are_one_message_and_status_two(data, words, message, capsys):
    assert status_of(["plan", "--data", data, *SMALL, *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    "words",
    [
        ["--data", "x", "--memory", "m.json"],
        ["--histogram", "h.csv", "--max-memory", "1GiB"],
        ["--data", "x", "--max-memory", "1GiB", "--graphs", "32"],
    ],
)
def test_options_that_do_not_go_together(words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["plan", *words])
    assert caught.value.code == 2
    assert "memory" in capsys.readouterr().err
