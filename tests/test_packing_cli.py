"""``staticgraph plan`` prints what the library finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import refusal

from staticgraph.cli import main
from staticgraph.plans.plan import BucketPlan

DATA = Path(__file__).parent / "data" / "histograms"
ESOL, NCI1 = str(DATA / "esol.csv"), str(DATA / "tu_NCI1.csv")


def found(capsys, *args: str) -> dict:
    assert main(["plan", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_packing_at_limits(capsys):
    values = found(capsys, "--histogram", NCI1, "--limits", "111", "238", "--max-graphs", "256")
    for name in ("packs", "node_efficiency", "edge_efficiency", "volume_bound", "seconds"):
        assert values[name] > 0
    assert values["packs"] == 1117
    assert main(["plan", "--histogram", NCI1, "--limits", "111", "238"]) == 0
    assert "no packing has fewer than 1,116 packs (volume)" in capsys.readouterr().out


def test_a_certified_packing(capsys):
    values = found(capsys, "--histogram", ESOL, "--limits", "55", "124", "--certify")
    assert values["bound"] == values["packs"] == 273


def test_a_plan_is_written_and_drawn(capsys, tmp_path):
    plan, picture, shown = tmp_path / "plan.json", tmp_path / "plan.png", tmp_path / "map.csv"
    knee = tmp_path / "knee.png"
    values = found(
        capsys,
        *("--histogram", ESOL, "--batch-size", "32", "--out", str(plan)),
        *("--plot", str(picture), "--map", str(shown)),
    )
    assert BucketPlan.load(plan).to_dict() == values["plan"]
    assert values["packs"] == 36
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert shown.read_text().startswith("max_nodes,max_edges,harmonic_mean\n55,124,0.")
    values = found(capsys, "--histogram", ESOL, "--graphs", "32", "--knee", str(knee))
    assert len(values["cost_by_buckets"]) == 6
    assert knee.read_bytes()[:4] == b"\x89PNG"
    assert main(["plan", "--histogram", ESOL, "--graphs", "16", "--buckets", "2"]) == 0
    assert "as many graphs as fit" in capsys.readouterr().out


def test_an_efficiency(capsys):
    values = found(capsys, "--histogram", ESOL, "--efficiency", "0.98")
    assert values["reached"]
    assert values["harmonic_mean"] >= 0.98


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "give one of --data and --histogram"),
        (("--histogram", ESOL, "--graphs", "3", "--batch-size", "3"), "give one of --batch-size"),
        (("--histogram", ESOL, "--certify"), "--certify needs --limits"),
        (
            ("--histogram", ESOL, "--batch-size", "8", "--effort", "best"),
            "--effort best is of packs that are made once: give --limits or --graphs alone",
        ),
        (
            ("--histogram", ESOL, "--limits", "55", "124", "--time-limit", "5"),
            "--time-limit is of --effort best",
        ),
        (("--histogram", ESOL, "--limits", "55", "124", "--out", "x"), "--out writes a plan"),
        (("--data", "x", "--memory", "m.json"), "--memory needs the cap: give --max-memory"),
        (("--histogram", "h.csv", "--max-memory", "1GiB"), "--max-memory needs the fields of the"),
        (
            ("--data", "x", "--max-memory", "1GiB", "--graphs", "32"),
            "--max-memory chooses exact batches: leave --graphs and the limits out",
        ),
    ],
)
def test_options_that_do_not_go_together(capsys, args, message):
    assert message in refusal(["plan", *args], capsys)


def test_errors_are_one_line(capsys, tmp_path):
    assert "raise the limit to 55" in refusal(
        ["plan", "--histogram", ESOL, "--limits", "54", "124"], capsys
    )
    (tmp_path / "bad.csv").write_text("nodes,edges\n1,2\n")
    assert "expected num_nodes,num_edges,count" in refusal(
        ["plan", "--histogram", str(tmp_path / "bad.csv"), "--graphs", "3"], capsys
    )
    (tmp_path / "bad.csv").write_text("num_nodes,num_edges,count\n3,4,2\n5,6,-1\n")
    assert "bad.csv: counts must be at least 1" in refusal(
        ["plan", "--histogram", str(tmp_path / "bad.csv"), "--graphs", "3"], capsys
    )


@pytest.mark.parametrize(
    "words", [("--batch-size", "32"), ("--efficiency", "0.9"), ("--limits", "67", "137")]
)
def test_a_cost_by_buckets_is_of_varying_numbers_of_graphs(capsys, tmp_path, words):
    """Exact batches have a single cost; the plot would show other batches than the plan's."""
    knee = tmp_path / "knee.png"
    assert "--knee draws what varying numbers of graphs cost" in refusal(
        ["plan", "--histogram", ESOL, *words, "--knee", str(knee)], capsys
    )
    assert not knee.exists()
