"""What a command refuses before it reads data, and before it imports torch where possible."""

from __future__ import annotations

import pytest
import torch
from support.command import refusal, write_module

from staticgraph import datasets
from staticgraph.training.config import TrainConfig
from staticgraph.training.run import Training

MODELS = """
import torch


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(9, 1)


def two(width, depth):
    return Net()


def nothing():
    return None


def frozen():
    return Net().requires_grad_(False)


def of_one(out):
    return out


number = 3
"""
ANY = {"train": [], "check": [], "try": [], "probe": [], "plan": ["--max-memory", "1GiB"]}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    write_module("early_models", MODELS, tmp_path, monkeypatch)

    def read(*_, **__):
        raise AssertionError("the data is read")

    monkeypatch.setattr(datasets, "open", read)


@pytest.mark.parametrize(
    ("command", "model", "words"),
    [
        *(
            (command, "no_such:build", "there is no module 'no_such' here (looked in ")
            for command in ANY
        ),
        ("train", "early_models:net", "has nothing called 'net'; did you mean 'Net'?"),
        ("try", "early_models:two", "two needs width, depth; name a function that takes the data"),
        ("check", "early_models:number", "number is of type int; name what builds it"),
        # Models that take no data are built before data is read.
        ("train", "early_models:nothing", "it should give a torch.nn.Module"),
        ("train", "early_models:frozen", "no parameter has requires_grad: nothing to train"),
    ],
)
def test_a_model_that_cannot_be_built(command, model, words, capsys):
    words_given = [command, "--data", "esol", "--model", model, *ANY[command]]
    assert words in refusal(words_given, capsys)


@pytest.mark.parametrize("command", ["try", "probe"])
def test_a_loss_that_cannot_be_called(command, capsys):
    given = [command, "--data", "esol", "--loss"]
    assert "has nothing called 'of_two'; did you mean 'two'?" in refusal(
        [*given, "early_models:of_two"], capsys
    )
    assert "it is called as loss(out, batch): too many" in refusal(
        [*given, "early_models:of_one"], capsys
    )


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("early_models.py", "write early_models:Net"),
        ("{here}/early_models.py", "write early_models:Net"),
        ("nets/early.py", "write nets.early:Net"),
        ("../early.py", "write early:Net, with PYTHONPATH=.."),
    ],
)
def test_a_path_is_no_module(path, instead, tmp_path, capsys):
    """The message says what to write instead."""
    given = f"{path.format(here=tmp_path)}:Net"
    assert refusal(["train", "--data", "esol", "--model", given], capsys).endswith(f": {instead}\n")


# ---------------------------------------------------------------------- modes


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead", "cuda-graph"])
def test_a_recording_mode_on_a_cpu(mode, capsys):
    said = refusal(["train", "--data", "esol", "--device", "cpu", "--compile-mode", mode], capsys)
    assert f"argument --compile-mode: {mode} records CUDA graphs, and this runs on a CPU" in said
    assert "--allow-cpu runs it all the same" in said
    assert ("max-autotune-no-cudagraphs" in said) == (mode == "max-autotune")


def test_in_python_too_it_is_refused_before_data_is_read(tmp_path):
    config = TrainConfig("esol", device="cpu", compile_mode="cuda-graph", kernels="off")
    with pytest.raises(ValueError, match="mode='cuda-graph' records CUDA graphs"):
        Training(config, tmp_path, False)


def test_a_model_built_early_has_the_weights_of_the_seed(monkeypatch, tmp_path, esol):
    """Random numbers drawn afterwards do not depend on those that reading the data drew."""

    def read(*_, **__):
        torch.rand(7)
        return esol.with_splits(train=range(40), val=range(0), test=range(0))

    monkeypatch.setattr(datasets, "open", read)
    config = TrainConfig("esol", device="cpu", model="early_models:Net", compile_mode="eager")
    made = Training(config, tmp_path, False)
    after = torch.rand(1)
    torch.manual_seed(config.seed)
    assert torch.equal(made.model.weight, torch.nn.Linear(9, 1).weight)
    assert torch.equal(after, torch.rand(1))


# ---------------------------------------------------------------------- data


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("t.csv.gz", "t.csv.gz is a packed file: unpack it first."),
        ("t.xyz", "t.xyz is a file that ends in .xyz, which is not read. A table with commas is"),
        ("t", "t is a file that ends in nothing, which is not read."),
        ("ESOL", "cannot tell what data set 'ESOL' is: did you mean esol?"),
        ("zinc", "cannot tell what data set 'zinc' is.\n"),
    ],
)
def test_data_that_is_not_read(name, words, tmp_path, capsys):
    for made in ("t.csv.gz", "t.xyz", "t"):
        (tmp_path / made).write_text("smiles,y\nC,1\n")
    assert f"staticgraph plan: {words}" in refusal(["plan", "--data", name], capsys)
