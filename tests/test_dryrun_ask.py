"""The parent's side of a dry run, without a child: what it refuses, hands over and prints."""

from __future__ import annotations

import io
import subprocess
import sys
from multiprocessing import Pipe

import pytest
import torch
from support.dryrun_models import HIDDEN, Summed, gine
from torch import nn

import staticgraph as sg
from staticgraph import cli
from staticgraph.dryrun import child, device_guard, dry_run, start_child
from staticgraph.dryrun.patches import LEAVE_OUT, Patch
from staticgraph.dryrun.report import BucketRun, Cause, DryRun
from staticgraph.errors import DryRunBroken, DryRunUnavailable
from staticgraph.text.progress import say
from staticgraph.training import plots

LAUNCHES = {
    "forward": {"library": {"aten::mm": 2}, "inductor": {"triton_poi_fused_add_0": 1}},
    "backward": {"staticgraph": {"table_sum_backward": 3}},
    "optimizer": {"library": {"aten::_fused_adam_": 1}},
}


def report(**options) -> DryRun:
    run = BucketRun(
        "reduce-overhead", 0, "(nodes=9)", "step", 2, 2, launches=LAUNCHES, peak_bytes=2**20
    )
    values = {"runs": (run,), "uses": (), "emulated": ("attention",), "notes": ("a note",)}
    return DryRun("h100", "NVIDIA H100", "2.13.0", "Net", True, "bfloat16", **values | options)


def test_a_report_says_what_it_is_and_what_stands_in_the_way():
    cause = Cause("cpu ops", "aten.sin.default", "model.py:7: x.sin()")
    cut = BucketRun("reduce-overhead", 0, "(nodes=9)", "eval", 3, 1, causes=(cause,))
    text = str(report(runs=(report().runs[0], cut)))
    assert "compiled for NVIDIA H100, not run on one; no time of a step is promised" in text
    assert "in 3 pieces instead of 1\n  cpu ops: aten.sin.default at model.py:7: x.sin()" in text
    assert "emulated: attention" in text
    assert not report(runs=(cut,)).ok


def test_what_the_child_says_is_said_here(capsys):
    """Such as how the labels of a table were guessed: nobody sees the child's own stderr."""

    def measured(fails):
        say("m.csv: grade is taken as 3 classes")
        if fails:
            raise ValueError("no such mode")
        return report()

    ours, theirs = Pipe()
    for fails in (False, True):
        theirs.send_bytes(child.answered(measured, fails))
        assert capsys.readouterr().err == ""
        if fails:
            with pytest.raises(ValueError, match="no such mode"):
                start_child.receive(ours)
        else:
            assert start_child.receive(ours) == report()
        assert capsys.readouterr().err == "m.csv: grade is taken as 3 classes\n"


def test_a_picture_of_launches(tmp_path):
    pytest.importorskip("matplotlib")
    plots.save_picture(tmp_path / "launches.png", plots.draw_launches, report())
    assert (tmp_path / "launches.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.draw_launches(report(runs=()))


@pytest.mark.parametrize(
    ("module", "name", "value", "said"),
    [
        (sys, "platform", "darwin", "needs Linux, and this is darwin"),
        (device_guard, "compiler", lambda: None, "there is no compiler: install g.."),
        (device_guard, "torch_version", lambda: "2.10.1+cpu", "2.11 or later; this is 2.10.1"),
    ],
)
def test_where_it_cannot_work_it_says_why(monkeypatch, capsys, module, name, value, said):
    monkeypatch.setattr(module, name, value)
    with pytest.raises(DryRunUnavailable, match=said):
        dry_run("support.dryrun_models:gine", data="examples/data/esol.npz")
    args = ["check", "--for", "h100", "--model", "support.dryrun_models:gine", "--data", "esol"]
    assert cli.main(args) == 3
    assert capsys.readouterr().err.startswith("skipped: ")


def test_another_torch_is_tried_with_a_word(monkeypatch):
    assert device_guard.caveat() is None or "was tried with torch" in device_guard.caveat()
    monkeypatch.setattr(device_guard, "torch_version", lambda: "2.99.0")
    assert "staticgraph.dryrun.selftest" in device_guard.caveat()


def test_a_guard_that_does_not_build_says_so(monkeypatch, tmp_path):
    broken = tmp_path / "guard.cpp"
    broken.write_text("#error no such torch\n")
    monkeypatch.setattr(device_guard, "SOURCE", broken)
    with pytest.raises(DryRunUnavailable, match="could not build the dry run's guard"):
        device_guard.built(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["guard.cpp"], "no half-made file is left"


def test_the_guard_is_not_loaded_after_torch():
    with pytest.raises(RuntimeError, match="before torch, and torch is imported already"):
        device_guard.load()


def test_a_symbol_that_torch_lost_is_named():
    with pytest.raises(DryRunBroken, match=r"has no torch\.cuda\.nothing, .*\(asks the driver\)"):
        Patch("torch.cuda:nothing", None, "asks the driver").apply()
    with pytest.raises(DryRunBroken, match=r"has no torch\._inductor\.gone\.Kind\.run"):
        Patch("torch._inductor.gone:Kind.run", None, "why").apply()


def test_what_another_process_cannot_find_is_refused_by_name(esol):
    class Local(nn.Linear):
        pass

    with pytest.raises(TypeError, match=r"the model, the loss cannot be handed.*mymodule:name"):
        start_child.packed({"model": gine(esol), "loss": lambda out, batch: out})
    with pytest.raises(TypeError, match="pass 'mymodule:name' instead"):
        start_child.packed({"model": Local(2, 2)})
    Local.__module__ = "__main__"
    with pytest.raises(TypeError, match=r"is defined in the main program.*model='mymodule:name'"):
        start_child.packed({"model": Local(2, 2)})
    again = torch.load(io.BytesIO(start_child.packed({"model": gine(esol)})), weights_only=False)[
        "model"
    ]
    assert again.head[0].weight.shape == (HIDDEN, HIDDEN)


@pytest.mark.slow
def test_a_module_is_dry_run_from_python(esol):
    """From a model object and a plan, as a user has them; this process does not change."""
    was = torch.cuda.is_available
    plan = sg.plan_buckets(esol, batch_size=16)
    try:
        found = dry_run(Summed(esol), plan, "a100", modes=["cuda-graph"], phases=["eval"])
    except DryRunUnavailable as error:
        pytest.skip(str(error))
    assert found.ok, found
    assert (found.target, found.device) == ("a100", "NVIDIA A100-SXM4-80GB")
    assert found.run("cuda-graph", "eval").count("forward") > 0
    assert found.uses
    assert torch.cuda.is_available is was


@pytest.mark.slow
def test_the_self_test_tells_what_broke(monkeypatch):
    """In a process started from scratch, as a user's is."""
    monkeypatch.setattr(start_child, "subprocess", subprocess)
    monkeypatch.setenv(LEAVE_OUT, "torch._inductor.async_compile:AsyncCompile.triton")
    broken = {
        "a compiled step, its launches noted",
        "recordings counted",
        "a cut recording, its cause named",
        "kernels compiled for the target",
    }
    try:
        with start_child.emulated() as ask:
            stages = ask(None)
    except DryRunUnavailable as error:
        pytest.skip(str(error))
    failed = {stage["stage"]: stage for stage in stages if not stage["ok"]}
    assert failed.keys() == broken, failed
    for stage in failed.values():
        assert "torch._inductor.async_compile.AsyncCompile.triton" in stage["points"]
