"""Small models of every kind, compiled for an H100 that is not present: one graph, recorded whole,
no more launches than committed, no spills. One child process serves the whole file."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from support import dryrun_models
from support.command import printed_json
from support.dryrun_models import EDGE_TYPES, NODE_TYPES, WIDTH
from support.launch_counts import added, counts
from torch_geometric.data import Data, HeteroData

import staticgraph as sg
from staticgraph import cli
from staticgraph.dryrun import start_child
from staticgraph.dryrun.device_guard import release, torch_version
from staticgraph.dryrun.report import DryRun
from staticgraph.dryrun.start_child import emulated
from staticgraph.errors import DryRunUnavailable

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "bench" / "results" / "launches.json"
# Set to write the numbers again, after a change that is meant to raise them.
WRITE = os.environ.get("STATICGRAPH_WRITE_LAUNCHES")
ESOL = {"data": str(ROOT / "examples" / "data" / "esol.npz")}

pytestmark = pytest.mark.slow

# Cases with this library's kernels, and one of stock layers, are compiled and must not spill; what
# the compiler writes for the others is similar. Every seventh case runs by default.
UNCOMPILED = {"compile_kernels": False}
CASES = {
    "gine kernels": {"model": "wide_gine", "kernels": True},
    "gine": {"model": "one_gine"},
    "gine kernels bfloat16": {"model": "wide_gine", "kernels": True, "autocast": "bfloat16"},
    "gps": {"model": "gps", **UNCOMPILED},
    "gat kernels bfloat16": {"model": "wide_gat", "kernels": True, "autocast": "bfloat16"},
    "gps kernels bfloat16": {"model": "gps", "kernels": True, "autocast": "bfloat16"},
    "gcn bfloat16": {"model": "one_gcn", "autocast": "bfloat16", **UNCOMPILED},
    "hetero bfloat16": {"model": "Hetero", "autocast": "bfloat16", **UNCOMPILED},
    "gat": {"model": "one_gat", **UNCOMPILED},
    "gcn kernels": {"model": "wide_gcn", "kernels": True},
    "dropout kernels": {"model": "dropout", "kernels": True},
    "forces": {
        "model": "Forces",
        "loss": "forces_loss",
        "differentiable": ["pos"],
        **UNCOMPILED,
    },
    # 1,752 nodes: a norm over this many rows takes two launches.
    "gine kernels bfloat16, many rows": {
        "model": "gine",
        "kernels": True,
        "autocast": "bfloat16",
        "batch_size": 128,
        **UNCOMPILED,  # few rows are compiled above
    },
    "forces of 32 molecules, neighbours inside": {
        "model": "MovingAtoms",
        "loss": "forces_loss",
        "differentiable": ["pos"],
        **UNCOMPILED,
    },
}
CASES["forces kernels"] = {**CASES["forces of 32 molecules, neighbours inside"], "kernels": True}


class Remembering:
    """A child that computes each answer only once."""

    def __init__(self, ask) -> None:
        self.asked: dict[str, DryRun] = {}
        self.ask = ask

    def dry_run(self, request: dict) -> DryRun:
        words = json.dumps(request, default=str)
        if words not in self.asked:
            self.asked[words] = self.ask(request)
        return self.asked[words]


@pytest.fixture(scope="module")
def child():
    try:
        with emulated("h100") as ask:
            yield Remembering(ask)
    except DryRunUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def plans() -> dict[str, sg.BucketPlan]:
    """Plans for data that the examples lack: positions, and types."""
    random = np.random.default_rng(0)

    def numbers(*shape):
        return torch.from_numpy(random.standard_normal(shape)).float()

    def ring(nodes):
        ends = torch.arange(nodes)
        return torch.stack([ends, (ends + 1) % nodes])

    clouds = [
        Data(z=torch.ones(n, dtype=torch.long), pos=numbers(n, 3), edge_index=ring(n), y=numbers(1))
        for n in (4, 5, 6, 7)
    ]
    typed = []
    for n in (4, 5, 6, 7):
        data = HeteroData()
        for kind in NODE_TYPES:
            data[kind].x = numbers(n, WIDTH)
        for kind in EDGE_TYPES:
            data[kind].edge_index = ring(n)
        typed.append(data)
    molecules = [
        Data(z=torch.ones(n, dtype=torch.long), pos=numbers(n, 3), y=numbers(1), num_nodes=n)
        for n in (3, 5, 6, 8, 14) * 20
    ]
    return {
        name: sg.plan_buckets(sg.GraphStore.from_pyg(graphs), batch_size=size)
        for name, graphs, size in (
            ("Forces", clouds, 2),
            ("Hetero", typed, 2),
            ("MovingAtoms", molecules, 32),
        )
    }


def test_the_self_test_passes(child):
    """In the process that serves the whole file; reports of a broken one are tested in
    ``test_dryrun_ask.py``."""
    stages = child.ask(None)
    assert len(stages) > 4
    assert [stage for stage in stages if not stage["ok"]] == []


def request(plans: dict[str, sg.BucketPlan], model: str, **options) -> dict:
    given = {"plan": plans[model]} if model in plans else ESOL
    for name in ("loss", "optimizer"):
        if name in options:
            options[name] = f"support.dryrun_models:{options[name]}"
    return {"model": f"support.dryrun_models:{model}", "phases": ["step"], **given, **options}


def of_case(child: Remembering, plans: dict[str, sg.BucketPlan], case: str) -> DryRun:
    return child.dry_run(request(plans, modes=["reduce-overhead"], **CASES[case]))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("case", CASES)
def test_a_step_is_one_graph_recorded_whole_on_the_device_alone(child, plans, case):
    report = of_case(child, plans, case)
    run = report.run("reduce-overhead")
    assert run.error is None, run.error
    assert run.graphs == 1
    assert run.graph_breaks == 0
    assert run.partitions == (1, 1), run.causes
    assert (run.pieces, run.expected) == (2, 2), run.causes
    assert run.causes == ()
    assert run.devices == ("cuda:0",)
    assert run.mutated_not_static == 0
    assert [use.name for use in report.uses if use.spill_bytes] == []
    counting = {u.name for u in report.uses if u.owner == "staticgraph" and u.atomics}
    assert {name.split(".")[-1] for name in counting} <= {"linear_small_backward"}, "tickets"
    assert run.at_least_s > 0
    assert run.resident_bytes < run.peak_bytes
    _compare_with_committed(case, run)


def _compare_with_committed(case: str, run) -> None:
    """No more launches than when the numbers were committed; an increase is named per launch."""
    committed = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {"cases": {}}
    if WRITE:
        committed["torch"] = release(torch_version())
        committed["cases"][case] = {"total": run.count(), "launches": counts(run)}
        COMMITTED.write_text(json.dumps(committed, indent=1, sort_keys=True) + "\n")
        return
    if committed["torch"] != release(torch_version()):
        pytest.skip(f"launches were committed with torch {committed['torch']}: Inductor's differ")
    before = committed["cases"][case]
    assert run.count() <= before["total"], (
        f"{case}: {run.count()} launches, {before['total']} were committed; more than then: "
        + ", ".join(added(before["launches"], counts(run)))
    )


def test_the_command_prints_what_the_child_found(child, monkeypatch, capsys, tmp_path):
    """``staticgraph check --for`` end to end: exit status 0, a table, the same as JSON, a
    picture."""
    monkeypatch.setattr(start_child, "emulated", lambda target: nullcontext(child.dry_run))
    before = len(child.asked)
    command = ["check", "--for", "h100", "--model", "support.dryrun_models:Summed"]
    command += ["--data", ESOL["data"]]
    command += ["--mode", "cuda-graph", "--kernels", "--batch-size", "16"]
    found = printed_json([*command, "--json"], capsys)
    assert found["ok"]
    assert [(r["mode"], r["phase"]) for r in found["runs"]] == [
        ("cuda-graph", "step"),
        ("cuda-graph", "eval"),
    ]
    assert found["uses"]
    picture = tmp_path / "launches.png"
    assert cli.main([*command, "--picture", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "in one piece" in said
    assert "not run on one" in said
    assert picture.stat().st_size > 0
    stopped = ["--model", "support.dryrun_models:OnTheHost", "--mode", "cuda-graph"]
    assert cli.main([*command[:3], *stopped, "--data", ESOL["data"]]) == 1
    assert "can be recorded: no" in capsys.readouterr().out
    assert len(child.asked) == before + 1, "printed and drawn from one question"


def test_a_full_warm_up_records_step_and_evaluation(child, plans):
    """``mode="cuda-graph"``: forward, backward, clipping and optimizer, all in one recording."""
    asked = request(plans, "one_gine", modes=["cuda-graph"], kernels=True, clip_norm=1.0)
    report = child.dry_run(asked | {"phases": ["step", "eval"], "compile_kernels": False})
    step, evaluation = report.run("cuda-graph"), report.run("cuda-graph", "eval")
    assert report.ok, report
    assert step.records() == evaluation.records() == "in one piece"
    assert any("_fused_adam_" in name for name in step.launches["optimizer"]["library"])
    assert step.count("optimizer") > 2, "clipping launches, too"
    assert evaluation.count("backward") == evaluation.count("optimizer") == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("optimizer", "kind", "operation"),
    [
        ("reads_a_number", "host read", "aten::_local_scalar_dense"),
        ("copies_to_host", "device-to-host copy", "aten::_to_copy"),
        ("copies_from_host", "operation on another device (cpu)", "aten::ones"),
        ("works_on_host", "operation on another device (cpu)", "aten::ones"),
    ],
)
def test_a_recording_refuses_by_name_and_line(child, plans, optimizer, kind, operation):
    asked = request(plans, "Summed", modes=["cuda-graph"], optimizer=optimizer)
    run = child.dry_run(asked | {"compile_kernels": False}).run("cuda-graph")
    assert run.records() == "not at all"
    assert run.pieces == 0
    assert run.error.startswith("bucket 0 step (scope step) cannot be recorded: Refused: ")
    (cause,) = run.causes
    assert cause.reason == kind
    assert cause.operation.startswith(operation)
    source = Path(dryrun_models.__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(source, 1) if text.startswith(f"{optimizer} = "))
    assert f"dryrun_models.py:{line}:" in cause.where


def test_a_recording_in_pieces_is_refused_and_its_cause_named(child, plans):
    """torch cuts the backward around an operator tagged unsafe, without a message; this library's
    warm-up counts the pieces."""
    asked = request(plans, "UnsafeBackward", modes=["reduce-overhead"])
    run = child.dry_run(asked | {"compile_kernels": False}).run("reduce-overhead")
    assert not run.ok
    assert run.records() == "in 3 pieces instead of 2"
    assert run.error.startswith(
        "bucket 0 step is not recorded whole: torch recorded 3 of 3 pieces, where a whole recording"
    )
    assert len(run.causes) == 1, run.causes
    (cause,) = run.causes
    assert "CUDAGraph-unsafe" in cause.reason
    assert "dryrun_models.unsafe" in cause.operation
    assert "dryrun_models.py" in cause.where
    assert "the line that is named" in cause.where


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["reduce-overhead", "cuda-graph"])
def test_an_operator_that_no_recording_holds_is_refused_before_it_compiles(child, plans, mode):
    asked = request(plans, "Unsafe", modes=[mode]) | {"compile_kernels": False}
    run = child.dry_run(asked).run(mode)
    assert run.records() == "not at all"
    assert "has operators that no recording can hold" in run.error
    assert "dryrun_models.py" in run.error
    assert "the line that is named" in run.error


def test_sizes_that_a_model_reads_off_its_index_are_served_as_in_a_run(child, plans):
    asked = request(plans, "OwnSizes", modes=["cuda-graph"]) | {"compile_kernels": False}
    assert child.dry_run(asked).ok
