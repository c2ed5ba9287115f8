"""``staticgraph probe`` and ``staticgraph plan --max-memory``: tables, JSON, pictures, errors."""

from __future__ import annotations

import io
import os

import pytest
import torch
from support.command import printed_json, refusal, status_of, write_module
from support.few_molecules import few_molecules
from torch_geometric.data import Data

import staticgraph as sg
from staticgraph import cli
from staticgraph.dryrun import compiled_probe
from staticgraph.errors import FitRefused
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.nn import context_of
from staticgraph.training import plots

SMALL = ["--model", "gcn", "--hidden", "8", "--layers", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory, esol) -> str:
    return str(few_molecules(esol, 200, tmp_path_factory))


@pytest.fixture(scope="module")
def memory(data, tmp_path_factory):
    """The JSON of a probe, which also draws a picture."""
    folder = tmp_path_factory.mktemp("probe")
    out, picture = folder / "memory.json", folder / "memory.png"
    words = ["--out", str(out), "--plot", str(picture), "--max-memory", "70MiB"]
    assert cli.main(["probe", "--data", data, *SMALL, *words]) == 0
    return out


def test_json_is_the_same_model(data, memory, capsys):
    found = printed_json(["probe", "--data", data, *SMALL, "--json"], capsys)
    assert found.pop("seconds") > 0
    assert MemoryModel.from_dict(found) == MemoryModel.load(memory)


def test_the_picture_is_drawn(memory, tmp_path):
    png = b"\x89PNG\r\n\x1a\n"
    assert memory.with_suffix(".png").read_bytes()[:8] == png
    alone = MemoryModel.load(memory)
    few = MemoryModel(alone.fit, points=alone.points)
    plots.save_picture(tmp_path / "alone.png", plots.draw_memory, few, "x")
    assert (tmp_path / "alone.png").read_bytes()[:8] == png


def test_a_plan_for_a_cap(data, memory, capsys, tmp_path):
    plan = tmp_path / "plan.json"
    words = ["--memory", str(memory), "--max-memory", "300KiB", "--min-steps", "1"]
    assert cli.main(["plan", "--data", data, *words, "--out", str(plan)]) == 0
    assert "by memory, most of it" in capsys.readouterr().out
    found = sg.BucketPlan.load(plan)
    assert sg.MemoryBudget("300KiB").fits(MemoryModel.load(memory), found.capacities)
    assert "predicted" in found.note
    others = ["--data", "examples/data/PROTEINS.npz", *words]
    assert "was probed on other data: its batches have 81, 41 and 21 b" in refusal(
        ["plan", *others], capsys
    )


def given_to_probe(monkeypatch) -> list[dict]:
    """Records the arguments with which the command would probe, and does not probe."""
    asked = []

    def note(model, store, **options):
        asked.append({"model": model, "kernels": context_of(model).kernels, **options})
        raise FitRefused("noted")

    monkeypatch.setattr(compiled_probe, "probe", note)
    return asked


@pytest.mark.parametrize(
    ("words", "kernels", "how"),
    [
        (["--model", "gcn"], False, {"like": "cpu", "compiled": False}),
        (["--model", "gat", "--kernels"], True, {"autocast": None}),
        (["--like", "cuda"], False, {"like": "cuda", "compiled": False}),
        (["--like", "cuda", "--kernels", "--autocast", "bfloat16"], True,
         {"autocast": torch.bfloat16}),
        (["--like", "cuda", "--compiled", "--for", "l4"], False,
         {"compiled": True, "target": "l4"}),
    ],
)  # fmt: skip
def test_a_probe_is_of_the_model_that_train_trains(data, words, kernels, how, monkeypatch):
    asked = given_to_probe(monkeypatch)
    assert status_of(["probe", "--data", data, "--hidden", "8", "--layers", "1", *words]) == 2
    (found,) = asked
    assert found["kernels"] == kernels
    assert {name: found[name] for name in how} == how
    with io.BytesIO() as file:
        torch.save(found["loss"], file)  # as for another process


@pytest.mark.parametrize("command", [["probe"], ["plan", "--max-memory", "1GiB"]])
def test_a_model_and_a_loss_by_name_are_probed(command, data, tmp_path, monkeypatch, capsys):
    mutag = os.path.abspath("examples/data/MUTAG.npz")
    write_module(
        "probed_net",
        "from torch_geometric.nn import GCN\nfrom torch.nn import functional as F\n\n\n"
        "def build(store):\n    return GCN(store.schema['x'].width, 4, 1, 1)\n\n\n"
        "def loss(out, batch):\n    return F.mse_loss(out, out * 0, reduction='none')\n",
        tmp_path,
        monkeypatch,
    )
    asked = given_to_probe(monkeypatch)
    named = ["--model", "probed_net:build", "--loss", "probed_net:loss"]
    refusal([*command, "--data", data, *named], capsys)
    refusal([*command, "--data", mutag, "--model", "gin", *named[2:]], capsys)
    found, classes = asked
    assert type(found["model"]).__name__ == "GCN"
    assert found["loss"].__module__ == "probed_net"
    assert classes["model"].head[2].out_features == 2  # as staticgraph train has


@pytest.mark.parametrize("words", [[], ["--like", "cuda", "--device", "cuda"]])
def test_compiled_is_for_a_gpu_that_is_not_here(data, words, capsys):
    assert "--compiled counts a step for a GPU that is not here" in refusal(
        ["probe", "--data", data, *SMALL, "--compiled", *words], capsys
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-memory", "1KiB"], "the floor for this plan"),
        (["--max-memory", "3 parsecs"], "not an amount of memory"),
        (["--memory", "nowhere.json", "--max-memory", "1GiB"], "nowhere.json"),
    ],
)
def test_errors_are_one_message_and_status_two(data, words, message, capsys):
    shown = refusal(["plan", "--data", data, *SMALL, *words], capsys)
    assert message in shown
    assert "Traceback" not in shown


SETS = """
from torch import nn
from torch_geometric.nn import global_mean_pool


class Sets(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 16), nn.Linear(16, 1)

    def forward(self, x, batch, num_graphs):
        return self.outer(global_mean_pool(self.inner(x).relu(), batch, size=num_graphs))
"""


@pytest.mark.parametrize("indexed", [True, False], ids=["no edges", "no edge_index"])
def test_data_without_edges_is_probed(indexed, tmp_path, monkeypatch, capsys):
    """For sets, such as point clouds without edges, the fit is exact and a plan can use it."""
    write_module("users_sets", SETS, tmp_path, monkeypatch)
    none = {"edge_index": torch.empty(2, 0, dtype=torch.long)} if indexed else {}
    sizes = [3 + 7 * k % 30 for k in range(60)]
    sets = [Data(x=torch.ones(n, 3), y=torch.ones(1, 1), **none) for n in sizes]
    torch.save(sets, "sets.pt")
    words = ["--data", "sets.pt", "--model", "users_sets:Sets"]
    assert status_of(["probe", *words, "--out", "memory.json"]) == 0
    assert "residual 0.00%, held-out error 0.00%" in capsys.readouterr().out
    assert MemoryModel.load("memory.json").fit.shares(sg.Capacity(100, 50, 9))["edges"] == 0
    cap = ["--memory", "memory.json", "--max-memory", "40KiB", "--out", "plan.json"]
    assert status_of(["plan", "--data", "sets.pt", *cap]) == 0
    assert sg.BucketPlan.load("plan.json").capacities
