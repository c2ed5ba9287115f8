"""Commands report a failing model or loss of the user's in one line, with the place."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.command import refusal, status_of, write_module
from support.examples import EXAMPLES

from staticgraph import cli
from staticgraph.cli.refusals import TRACEBACK

MODELS = """
import torch
from torch import nn
from torch_geometric.nn import GCNConv, global_mean_pool


class Net(nn.Module):
    def __init__(self, width=9, out=1):
        super().__init__()
        self.conv = GCNConv(width, 4)
        self.head = nn.Linear(4, out)

    def forward(self, x, edge_index, batch):
        return self.head(global_mean_pool(self.conv(x.float(), edge_index), batch))


class NoPool(Net):
    def forward(self, x, edge_index, batch):
        return self.head(self.conv(x.float(), edge_index))


class Short(Net):
    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch)[:-1]


class Pair(Net):
    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch), x


class Typo(Net):
    def forward(self, x, edge_index, batch):
        return self.heads(x)


class Asks(Net):
    def forward(self, x, edge_index, batch):
        return super().forward(x * 2 if x.sum().item() > 3 else x, edge_index, batch)


class Scalar(Net):
    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch).sum()


class Key(Net):
    def forward(self, x, edge_index, batch):
        return {"out": super().forward(x, edge_index, batch)}["outs"]


class Endless(tuple):
    def __len__(self):
        raise NotImplementedError


class Odd(Net):
    sizes = Endless([1])

    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch) + sum(size for size in self.sizes)


class Breaks(Net):
    def forward(self, x, edge_index, batch):
        torch._dynamo.graph_break()
        return super().forward(x, edge_index, batch)


class Chooses(Net):
    def forward(self, x, edge_index, batch):
        out = super().forward(x, edge_index, batch)
        return out[out[:, 0] > 0]


class Splits(Net):
    def forward(self, x, edge_index, batch):
        out = super().forward(x, edge_index, batch)
        return out + out.split(x[0, :2].tolist())[0].sum(0)


class Counts(Net):
    def forward(self, x, edge_index, batch):
        out = super().forward(x, edge_index, batch)
        return out + 0 * len(torch.bincount(batch).tolist())


class Detached(Net):
    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch).detach()


def wide():
    return Net(out=7)


def narrow():
    return Net(width=5)


def frozen():
    return Net().requires_grad_(False)


def raises():
    raise RuntimeError("no weights")


made = Net()


def of_one(out):
    return out


def of_no_field(out, batch):
    return out - batch.target
"""
TRAIN = ["train", "--compile-mode", "eager", "--epochs", "1", "--overwrite", "--out", "run"]
PROBE = ["probe"]
AT = r"users_models\.py, line \d+"
LINE = f"{AT}, in "


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    write_module("users_models", MODELS, tmp_path, monkeypatch)
    (tmp_path / "users_slip.py").write_text("def build(:\n")
    (tmp_path / "users_import.py").write_text("import not_installed\n")


def said(words, capsys):
    assert status_of([*words, "--data", str(EXAMPLES / "esol.npz")]) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", [TRAIN, PROBE], ids=["train", "probe"])
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("users_models:narrow", LINE + r"forward: RuntimeError: .*(shapes|dim).* \(STATICGRAPH_TR"),
        ("users_models:Typo", LINE + "forward: AttributeError: 'Typo' object has no attribute"),
        ("users_models:raises", LINE + r"raises: RuntimeError: no weights"),
        ("users_models:NoPool", r"gives \[\d+, 1\], .* row per graph, .*: pool over nodes, as glo"),
        ("users_models:Short", r"gives \[\d+, 1\], .* row per graph, .*: keep a row per graph"),
        ("users_models:wide", r"gives \[\d+, 7\], .*: give its last layer 1 for regression"),
        ("users_models:Pair", r"gives a tuple, .*: return that alone"),
        ("users_models:frozen", "no parameter has requires_grad: nothing to train"),
        ("users_models:Detached", r"depends on nothing that is trained: look for detach\(\)"),
        ("users_models:made", "made is a model already, .*; name its class Net, or a function"),
        ("users_slip:build", r"users_slip\.py, line 1: SyntaxError: invalid syntax \(STATIC"),
        (
            "users_import:build",
            r"users_import\.py, line 1, in <module>: ModuleNotFoundError: No module named",
        ),
    ],
)
def test_a_model_that_fails_is_one_line(command, model, words, capsys):
    line = said([*command, "--model", model], capsys)
    assert re.match(f"staticgraph {command[0]}: .*{words}", line), line


def test_a_number_that_fake_tensors_have_not(capsys):
    line = said([*PROBE, "--model", "users_models:Asks"], capsys)
    assert re.search(LINE + "forward: it reads a number off a tensor", line)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("of_one", "--loss users_models:of_one: it is called as loss(out, batch): too many"),
        ("of_no_field", "in of_no_field: AttributeError: the batch has no 'target'; it has edge"),
    ],
)
def test_a_loss_that_fails_is_one_line(loss, words, capsys):
    given = ["--model", "users_models:Net", "--loss", f"users_models:{loss}"]
    assert words in said([*PROBE, *given], capsys)


def test_the_traceback_is_shown_where_asked_for(monkeypatch):
    monkeypatch.setenv(TRACEBACK, "1")
    with pytest.raises(RuntimeError, match="no weights"):
        cli.main([*PROBE, "--model", "users_models:raises", "--data", str(EXAMPLES / "esol.npz")])


def test_a_bug_of_this_library_is_none_of_the_model(monkeypatch):
    """The error comes from a line of this library, not of the user's model."""
    from staticgraph.text.table import table

    def broken(*_, **__):
        table(["a"], [3])  # type: ignore[list-item]

    monkeypatch.setattr("staticgraph.cli.probe.measure", broken)
    with pytest.raises(TypeError, match="not iterable"):
        cli.main([*PROBE, "--model", "users_models:Net", "--data", str(EXAMPLES / "esol.npz")])


COMPILED = ["train", "--compile-mode", "default", *TRAIN[3:]]
MAY_SHOW = r" \(STATICGRAPH_TRACEBACK=1 shows every call\)$"
DATA = "a number or a size here follows from data: give sizes instead of reading them"
MORE = "; staticgraph check or --compile-mode eager says more"
HERE = r"users_models\.py:\d+: "


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            "Scalar",
            r"the model gives \[\], and its loss takes a row per graph, .*: keep a row per gr",
        ),
        ("wide", r"the model gives \[\d+, 7\], .*: give its last layer 1 for regression"),
        ("Key", r"the model raises KeyError\('outs'\)"),
        ("narrow", rf"RuntimeError\(.*(shapes|dim).*{HERE}return self.head"),
        ("Asks", f"{HERE}return super.*; {DATA}"),
        ("Chooses", DATA),
        ("Counts", f"{HERE}return out.*; {DATA}"),
        ("Splits", f"item at .*{HERE}return out.*; Give the sizes instead of reading them"),
        ("Odd", r"NotImplementedError: raised by __len__, .*users_models\.py:\d+; Give the oper"),
        ("Breaks", rf"Call to .*{HERE}torch._dynamo.graph_break\(\); Give the operation a static"),
    ],
)
def test_a_model_that_cannot_be_captured_is_one_line(model, words, capsys):
    """And not the page-long message of torch's tracer."""
    line = said([*COMPILED, "--model", f"users_models:{model}"], capsys)
    assert re.match(f"staticgraph train: --model users_models:{model}: .*{words}", line), line
    assert re.search(MORE + MAY_SHOW, line), line
    assert "mode='eager'" not in line


def test_all_that_torch_says_is_shown_where_asked_for(monkeypatch, capsys):
    monkeypatch.setenv(TRACEBACK, "1")
    words = [*COMPILED, "--model", "users_models:Breaks", "--data", str(EXAMPLES / "esol.npz")]
    said = refusal(words, capsys)
    assert "cannot be compiled in fixed shapes" in said
    assert "from user code" in said
    assert "users_models.py" in said


def test_a_model_named_in_a_config_is_named_alike(capsys):
    Path("config.toml").write_text('model = "users_models:Typo"\n')
    line = said([*TRAIN, "--config", "config.toml"], capsys)
    assert re.match(f"staticgraph train: --model users_models:Typo: .*{LINE}forward: Attri", line)


def test_a_model_that_fails_in_a_resumed_run_is_named(capsys):
    """The run's settings name the model; the command line does not."""
    data = str(EXAMPLES / "esol.npz")
    assert status_of([*TRAIN, "--data", data, "--model", "users_models:Net"]) == 0
    Path("users_models.py").write_text(MODELS.replace("self.head(global", "self.heads(global"))
    sys.modules.pop("users_models")
    capsys.readouterr()
    resume = ["train", "--resume", "--out", "run", "--epochs", "2"]
    line = refusal(resume, capsys).strip().splitlines()[-1]
    assert re.match(f"staticgraph train: --model users_models:Net: .*{LINE}forward: Attri", line)
