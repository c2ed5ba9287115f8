"""``staticgraph check``: which models it takes, and what it says about those it cannot build."""

from __future__ import annotations

import re

import pytest
from support.command import status_of
from support.examples import EXAMPLES

import staticgraph as sg
from staticgraph.cli import main
from staticgraph.dryrun.subject import candidate_of

ESOL = str(EXAMPLES / "esol.npz")


def test_the_command_takes_a_model_of_the_zoo(capsys):
    assert main(["check", "--model", "gcn", "--data", ESOL]) == 0
    assert "gcn_sum" in capsys.readouterr().out


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
    assert "1. the model raises: RuntimeError: mat1 and mat2 shapes" in out
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
    assert status_of(["check", "--model", model, "--data", ESOL]) == 2
    assert says in capsys.readouterr().err
    with pytest.raises(ValueError, match=re.escape(by_itself)):  # as a dry run's process words it
        candidate_of({"model": model, "data": ESOL})


def test_a_dry_run_of_a_plan_alone_has_no_data_to_build_from(tmp_path):
    plan = sg.plan_buckets(sg.datasets.open(ESOL), batch_size=8)
    plan.save(tmp_path / "plan.json")
    with pytest.raises(ValueError, match="it is built from the data, and only a plan"):
        candidate_of({"model": "gine", "plan": str(tmp_path / "plan.json")})


def test_a_model_that_fails_where_it_is_dry_run_is_no_fault_of_the_command(monkeypatch, capsys):
    def fails(*_args, **_options):
        raise RuntimeError("the dry run failed: KeyError: 'weights.pt'")

    monkeypatch.setattr("staticgraph.dryrun.dry_run", fails)
    assert main(["check", "--for", "h100", "--model", "gine", "--data", ESOL]) == 4
    assert "KeyError: 'weights.pt'" in capsys.readouterr().err
