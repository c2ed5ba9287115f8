"""``staticgraph check``: which models it takes, and what it says about those it cannot build."""

from __future__ import annotations

import json
import re

import pytest
import torch
from jsonschema import Draft202012Validator
from support.command import printed_json, refusal
from support.dryrun_models import OnTheHost, OwnSizes, Summed, Unsafe, UnsafeBackward
from support.examples import EXAMPLES
from support.schemas import schema_of

import staticgraph as sg
from staticgraph.cli import main
from staticgraph.dryrun.measure import candidate_of
from staticgraph.dryrun.report import BucketRun, DryRun

ESOL = str(EXAMPLES / "esol.npz")


def test_the_command_takes_a_model_of_the_zoo(capsys):
    words = ["check", "--model", "gcn", "--data", ESOL]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "gcn" in out
    assert "what it computes" in out
    done = printed_json([*words, "--json"], capsys)["rewrites"]["done"]
    assert "gcn" in {place["rewrite"] for place in done}


def test_of_a_model_that_does_not_run_nothing_else_is_told(tmp_path, monkeypatch, capfd):
    """Neither that the model is not static, nor torch's own messages about capturing it."""
    (tmp_path / "of_other_data.py").write_text(
        "from torch_geometric.nn import GCN\n\n\n"
        "class Net(GCN):\n"
        "    def __init__(self):\n"
        "        super().__init__(5, 4, 1)\n\n"
        "    def forward(self, x, edge_index):\n"
        "        return super().forward(x.float(), edge_index)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", "--model", "of_other_data:Net", "--data", ESOL]) == 1
    out, err = capfd.readouterr()
    assert "1. the model raises: RuntimeError: " in out
    *_, verdict, nothing, rewrites = out.strip().splitlines()
    assert verdict == "the model does not run, so nothing else was looked at"
    assert (nothing, rewrites) == ("", "rewrites: not looked for, since the model does not run")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("model", "says", "by_itself"),
    [
        (
            "gien",
            "--model: 'gien': give one of gine, gps",
            "--model gien: expected MODULE:NAME, such as mymodule:build, or one of gine, gps",
        ),
        (
            "staticgraph.models:build",
            "build needs name, store; name a function that takes the",
            "build needs name, store; name a function that takes the",
        ),
    ],
)
def test_the_command_says_what_it_cannot_build(capsys, model, says, by_itself):
    assert says in refusal(["check", "--model", model, "--data", ESOL], capsys)
    with pytest.raises(ValueError, match=re.escape(by_itself)):  # as a dry run's process words it
        candidate_of(model, data=ESOL)


def test_a_dry_run_of_a_plan_alone_has_no_data_to_build_from():
    plan = sg.plan_buckets(sg.datasets.open(ESOL), batch_size=8)
    with pytest.raises(ValueError, match="it is built from the data, and only a plan"):
        candidate_of("gine", plan)


class Divides(Summed):
    def between(self, out):
        return out / out.abs().max().item()


def read_of_the_host(out, batch):
    return (out - batch.y).square() / float(out.abs().max())


def dry_runs(monkeypatch) -> list[tuple[str, ...]]:
    """The modes of each dry run that the command asks for; each counts a launch."""
    asked = []

    def dry_run(_model, *, modes, **_options):
        asked.append(modes)
        runs = tuple(BucketRun(mode, 0, "(nodes=9)", "step", 1, 1) for mode in modes)
        return DryRun("h100", "NVIDIA H100", "2.13", "Net", False, None, runs)

    monkeypatch.setattr("staticgraph.dryrun.dry_run", dry_run)
    monkeypatch.setattr("staticgraph.dryrun.device_guard.why_not", lambda: None)
    return asked


ALL = ("default", "reduce-overhead", "cuda-graph")


@pytest.mark.parametrize(
    ("model", "options", "compiled"),
    [
        (OwnSizes, [], [ALL]),
        (UnsafeBackward, [], [("default",)]),
        (UnsafeBackward, ["--mode", "cuda-graph"], []),
        (Divides, [], []),
        (Summed, ["--loss", f"{__name__}:read_of_the_host"], []),
    ],
)
def test_a_gpu_adds_numbers_to_the_verdict_of_the_check(
    model, options, compiled, monkeypatch, capsys
):
    """What cannot run is not compiled, and the exit status and the obstacles are the check's."""
    asked = dry_runs(monkeypatch)
    command = ["check", "--model", f"{model.__module__}:{model.__name__}", "--data", ESOL]
    status = main([*command, "--for", "h100", "--json", *options])
    printed = json.loads(capsys.readouterr().out)
    Draft202012Validator(schema_of("check-for" if compiled else "check")).validate(printed)
    assert asked == compiled
    assert (status == 0) is printed["ok"] is (compiled == [ALL])
    check = printed.get("check", printed)
    assert check["recordable"] is (compiled == [ALL])


@pytest.mark.parametrize(
    ("model", "compiles", "kinds"),
    [
        (OnTheHost, True, ["device-to-host copy", "host-to-device copy"]),
        (Unsafe, True, ["cannot be recorded"]),
        (UnsafeBackward, True, ["cannot be recorded"]),
    ],
)
def test_the_check_sees_what_a_recording_would(model, compiles, kinds):
    store = sg.datasets.open(ESOL)
    torch.manual_seed(0)
    found = sg.check(model(store), sg.plan_buckets(store, batch_size=8), store)
    assert (found.compiles, found.recordable) == (compiles, False)
    assert [o.kind for o in found.obstacles] == kinds


def test_a_model_that_fails_where_it_is_dry_run_is_no_fault_of_the_command(monkeypatch, capsys):
    def fails(*_args, **_options):
        raise RuntimeError("the dry run failed: KeyError: 'weights.pt'")

    dry_runs(monkeypatch)
    monkeypatch.setattr("staticgraph.dryrun.dry_run", fails)
    assert main(["check", "--for", "h100", "--model", "gine", "--data", ESOL]) == 4
    assert "KeyError: 'weights.pt'" in capsys.readouterr().err
