"""``staticgraph check`` reports what it rewrites in a model, and what prevented it elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import status_of

import staticgraph as sg

OWN = """\
import torch
from torch import nn
from torch_geometric.nn import GINConv, MessagePassing, global_add_pool


class Odd(MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j):
        return torch.cumsum(x_j, -1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GINConv(nn.Linear(9, 8))
        self.odd = Odd()
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index, batch, batch_size):
        h = self.conv(x.float(), edge_index)
        h = self.odd(h, edge_index)
        return self.head(global_add_pool(h, batch, batch_size))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, esol) -> Path:
    folder = tmp_path_factory.mktemp("check")
    few = sg.GraphStore.from_pyg([esol[i] for i in range(40)], name="few", progress=False)
    few.save(folder / "few")
    (folder / "checked_net.py").write_text(OWN)
    (folder / "broken_net.py").write_text(
        OWN.replace("h = self.odd(h, edge_index)", "h = self.head(h)")
    )
    return folder


def checked(folder, module, monkeypatch, capsys, *words) -> tuple[int, str]:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    model = ["--model", f"{module}:Net", "--batch-size", "8"]
    status = status_of(["check", "--data", "few", *model, *words])
    return status, capsys.readouterr().out


def test_places_stand_by_the_models_own_lines(folder, monkeypatch, capsys):
    status, text = checked(folder, "checked_net", monkeypatch, capsys)
    lines = OWN.splitlines()
    conv = lines.index("        h = self.conv(x.float(), edge_index)") + 1
    odd = lines.index("        return torch.cumsum(x_j, -1)") + 1
    assert status == 0
    rows = [line.split() for line in text[text.index("rewrites: mode fused") :].splitlines()]
    summed = ["sum", "of", "_x_1[source],", "and", "(conv.eps", "+", "1)", "*", "_x_1"]
    assert ["conv", f"checked_net.py:{conv}", "neighbours", *summed] in rows
    (missed,) = (row for row in rows if row[-3:] == ["apart", "from", "it"])
    assert missed[:2] == ["odd", f"checked_net.py:{odd}"]


def test_json_has_the_same(folder, monkeypatch, capsys):
    _, text = checked(folder, "checked_net", monkeypatch, capsys, "--json")
    found = json.loads(text)["rewrites"]
    assert {"neighbours", "pools"} <= {one["rewrite"] for one in found["done"]}
    (missed,) = (one for one in found["missed"] if one["layer"] == "odd")
    assert missed["reason"] == "cumsum is computed apart from it"
    assert found["note"] == ""


def test_a_model_that_does_not_run_is_a_note(folder, monkeypatch, capsys):
    status, text = checked(folder, "broken_net", monkeypatch, capsys)
    assert status == 1
    assert "rewrites: not looked for, since the model does not run" in text
